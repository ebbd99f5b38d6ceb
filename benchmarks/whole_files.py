"""Whole files of the formats that are read: those that installed packages bring, and made ones."""

import gzip
import tempfile
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as PillowImage

LARGEST = 400_000

Source = tuple[str, bytes]
"""What a file is called, and its bytes."""


def all_sources() -> dict[str, list[Source]]:
    """All files by format."""
    nifti = contents(files_of("nibabel", "tests/data/*.nii*")) + made_nifti()
    packed = [each for each in nifti if each[1].startswith(b"\x1f\x8b")]
    plain = [each for each in nifti if each not in packed]
    pictures = made_pictures()
    return {
        **pictures,
        "JPEG": pictures["JPEG"] + contents(files_of("sklearn", "datasets/images/*.jpg")),
        "DICOM": contents(dicom_files()),
        "NIfTI": plain,
        "NIfTI.gz": packed + [(f"{name}.gz", gzip.compress(data)) for name, data in plain],
        "NRRD": made_nrrd(),
    }


def contents(paths: list[Path]) -> list[Source]:
    return [(path.name, path.read_bytes()) for path in paths]


def files_of(package: str, pattern: str) -> list[Path]:
    """Files that an installed package brings; none if it is not there."""
    spec = find_spec(package)
    folder = Path(spec.origin).parent if spec and spec.origin else Path("missing")
    return [path for path in sorted(folder.glob(pattern)) if path.stat().st_size < LARGEST]


def dicom_files() -> list[Path]:
    """pydicom's test files with pixels, in all of their transfer syntaxes."""
    pixels = (b"\xe0\x7f\x10\0", b"\x7f\xe0\0\x10", b"1.2.840.10008.1.2.1.99")
    return [
        path
        for path in files_of("pydicom", "data/test_files/**/*")
        if path.is_file() and any(each in path.read_bytes() for each in pixels)
    ]


def picture() -> PillowImage.Image:
    """A shaded colour picture with noise, of odd size."""
    y, x = np.mgrid[0:1:151j, 0:1:203j]
    colours = np.stack([x, y, 0.5 + 0.5 * np.sin(20 * x * y)], axis=2)
    noise = np.random.default_rng(0).normal(0, 0.02, colours.shape)
    return PillowImage.fromarray(np.uint8(255 * np.clip(colours + noise, 0, 1)))


def made_pictures() -> dict[str, list[Source]]:
    rgb = picture()
    grey, alpha, palette = rgb.convert("L"), rgb.convert("RGBA"), rgb.convert("P")
    deep = PillowImage.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    real = PillowImage.fromarray(np.asarray(grey).astype(np.float32) / 255)
    turned = PillowImage.Exif()
    turned[274] = 6
    ways: dict[str, list[tuple[PillowImage.Image, dict[str, Any]]]] = {
        "PNG": [(each, {}) for each in (rgb, grey, alpha, palette, deep, grey.convert("1"))]
        + [(rgb, {"exif": turned}), (grey, {"transparency": 0}), (palette, {"transparency": 3})],
        "JPEG": [(each, {}) for each in (rgb, grey, rgb.convert("CMYK"))]
        + [(rgb, {each: True}) for each in ("progressive", "optimize")]
        + [(rgb, {"exif": turned}), (rgb, {"subsampling": 0})],
        "TIFF": [(each, {}) for each in (rgb, grey, alpha, palette, deep, real)]
        + [(rgb, {"compression": each}) for each in ("tiff_lzw", "tiff_deflate", "jpeg")]
        + [(deep, {"compression": each}) for each in ("tiff_lzw", "tiff_deflate", "packbits")]
        + [(grey.convert("1"), {"compression": "group4"}), (grey, {"tiffinfo": {274: 6}})],
        "WebP": [(rgb, {}), (alpha, {"lossless": True}), (rgb, {"exif": turned})],
    }
    return {
        kind: [
            (
                f"{kind} {image.mode} {' '.join(map(str, options))}".strip(),
                saved(image, kind, options),
            )
            for image, options in ways[kind]
        ]
        for kind in ways
    }


def saved(image: PillowImage.Image, kind: str, options: dict[str, Any]) -> bytes:
    stream = BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def made_volume(dtype: str) -> np.ndarray:
    x, y, z = np.mgrid[-1:1:24j, -1:1:21j, -1:1:18j]
    noise = np.random.default_rng(1).normal(0, 20, x.shape)
    return (900 * np.exp(-(x**2) - y**2 - 2 * z**2) + 100 + noise).astype(dtype)


def made_nifti() -> list[Source]:
    import nibabel

    affine = np.array([[-1.9, 0.3, 0, 20], [0.3, 1.9, 0, -20], [0, 0, 2.5, 5], [0, 0, 0, 1]])
    made = []
    for kind in (nibabel.Nifti1Image, nibabel.Nifti2Image):
        for dtype in ("<i2", ">i2", "<f4", "<f8", "|u1"):
            image = kind(np.clip(made_volume("f8"), 0, 255).astype(dtype), affine)
            image.header.set_slope_inter(2, -1000)
            made.append((f"{kind.__name__} {dtype}", image.to_bytes()))
    return made


def made_nrrd() -> list[Source]:
    import nrrd

    made = []
    for encoding in ("raw", "gzip", "bzip2"):
        for dtype in ("i2", "f4"):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "volume.nrrd"
                directions = {"space": "left-posterior-superior", "space directions": 2 * np.eye(3)}
                header = {"encoding": encoding, "space origin": [1, 2, 3], **directions}
                nrrd.write(str(path), made_volume(dtype), header)
                made.append((f"NRRD {encoding} {dtype}", path.read_bytes()))
    return made
