"""What pins are made from: tiny encoders and made-up images, the same bytes on every machine.

Only numpy's bit generator draws here. What torch draws depends on the processor.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image as PillowImage

from dicom_files import SERIES, save_dicom, save_series
from slide_files import PINK, PURPLE, blank, write_slide
from volume_files import affine, write_nifti

SIDE_PX = 70  # five by five patches of 14 px
RESNET_PX = 96  # three by three patches of the residual network
DOMAINS = ("Brain", "Liver", "Chest")
WITHOUT_MASKS = "Chest"


def write_inputs(root: Path) -> None:
    """Write `encoders/`, the domains in `data/`, and `cases/` of every kind of file."""
    _save(_vision_model(), root / "encoders" / "dino", std=0.08)
    _save_clip(root / "encoders" / "clip")
    _save(_residual_network(), root / "encoders" / "resnet", std=0.2)
    for index, name in enumerate(DOMAINS):
        _write_domain(root / "data" / f"{name}_AD", 100 * index, masks=name != WITHOUT_MASKS)
    _write_cases(root / "cases")


def scan(seed: int, lesion: bool = False) -> np.ndarray:
    """Draw soft stripes under noise, with a bright square as lesion: (H, W) uint8."""
    rows, columns = np.mgrid[:SIDE_PX, :SIDE_PX]
    bands = 90 + 2 * ((rows + 3 * seed) % 24) + (columns * (2 + seed % 3)) % 40
    image = bands + np.random.default_rng(seed).integers(-12, 13, bands.shape)
    return np.where(_square(seed) & lesion, 235, image).astype(np.uint8)


def _square(seed: int) -> np.ndarray:
    mask = np.zeros((SIDE_PX, SIDE_PX), bool)
    top, left = 8 + 7 * (seed % 4), 30 - 5 * (seed % 5)
    mask[top : top + 18, left : left + 22] = True
    return mask


def _write_domain(root: Path, seed: int, masks: bool) -> None:
    for split, first in (("valid", seed), ("test", seed + 50)):
        for number in range(first, first + 2):
            _write_png(root / split / "good" / "img" / f"{number}.png", scan(number))
            ill, name = root / split / "Ungood", f"{number + 10}.png"
            _write_png(ill / "img" / name, scan(number + 10, lesion=True))
            if masks:
                _write_png(ill / "anomaly_mask" / name, 255 * _square(number + 10).astype("u1"))


def _write_cases(folder: Path) -> None:
    grey = scan(70)
    _write_png(folder / "grey.png", grey[:60])
    _write_png(folder / "lesion.png", scan(71, lesion=True))
    rng = np.random.default_rng(72)
    _write_png(folder / "colour.png", rng.integers(0, 256, (41, 83, 3), np.uint8))
    frames = np.stack([scan(number, lesion=number == 75) for number in (74, 75, 76)])
    ultrasound = "1.2.840.10008.5.1.4.1.1.3.1"
    uids = {"SOPInstanceUID": f"{SERIES}.9.1", "SeriesInstanceUID": f"{SERIES}.9"}
    save_dicom(folder / "frames.dcm", frames, SOPClassUID=ultrasound, Modality="US", **uids)
    stack = np.stack([scan(number, lesion=number == 79) for number in range(77, 82)], axis=-1)
    turned = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])
    write_nifti(folder / "volume.nii.gz", stack[:50].astype(np.int16) * 4, affine(turned))
    series = np.stack([scan(number, lesion=number == 84)[:, :56] for number in range(82, 86)])
    window = {"WindowCenter": 40, "WindowWidth": 900, "RescaleSlope": 8, "RescaleIntercept": -1024}
    save_series(folder / "series", series.astype(np.uint16), **window)
    slide = blank(300, 260)
    slide[20:280, 10:250] = PINK
    slide[90:150, 60:140] = PURPLE
    slide[::7, ::5] = 80
    write_slide(folder / "slide.tif", slide)


def _write_png(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    PillowImage.fromarray(pixels).save(path)


def _vision_model() -> Any:
    config = transformers.Dinov2Config(
        hidden_size=32,
        num_hidden_layers=8,
        num_attention_heads=2,
        intermediate_size=64,
        patch_size=14,
        image_size=SIDE_PX,
    )
    return transformers.Dinov2Model(config)


def _residual_network() -> Any:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 12, 16], depths=[1, 1, 1, 1], layer_type="basic"
    )
    return transformers.ResNetModel(config)


def _save_clip(folder: Path) -> None:
    """Both towers and a tokeniser that knows every printable character."""
    characters = [chr(code) for code in range(33, 127)]
    ends = ["<|startoftext|>", "<|endoftext|>"]
    tokens = [*characters, *(f"{c}</w>" for c in characters), *ends]
    small = {"num_attention_heads": 2, "projection_dim": 24}
    config = transformers.CLIPConfig(
        vision_config=small
        | {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 8}
        | {"image_size": SIDE_PX, "patch_size": 14},
        text_config=small
        | {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
        | {"vocab_size": len(tokens), "bos_token_id": len(tokens) - 2}
        | {"eos_token_id": len(tokens) - 1},
        projection_dim=24,
    )
    _save(transformers.CLIPModel(config), folder, std=0.12)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")


def _save(model: Any, folder: Path, std: float) -> None:
    """Save a model with weights of our own draw: multiples of 2^-12, exact in every format."""
    rng = np.random.default_rng(len(folder.name))
    with torch.no_grad():
        for name, values in model.state_dict().items():
            if not values.is_floating_point():
                continue
            scales = "running_var" in name or (values.ndim == 1 and name.endswith("weight"))
            drawn = np.round(rng.standard_normal(tuple(values.shape)) * std * 4096) / 4096
            values.copy_(torch.as_tensor(drawn + 1.0 if scales else drawn))
    model.save_pretrained(folder, safe_serialization=True)


if __name__ == "__main__":
    write_inputs(Path(sys.argv[1]))
