"""Time of reading and preparing an image, as a ratio to encoding it in the same run.

    python benchmarks/read_speed.py [--count 1000] [--threads 1]

Reading means `recap.io.read_image` and the resize to the encoder's square. Slices are drawn at
random, with noise so that they compress like real ones. The encoder has random weights, which do
not change its time; its runs stand between those of reading, so that other work on the machine
slows down both alike.
"""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pydicom
import torch
import typer
from PIL import Image as PillowImage
from pydicom.dataset import FileMetaDataset
from pydicom.uid import (
    CTImageStorage,
    ExplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLSLossless,
    RLELossless,
    generate_uid,
)

from recap.config import EncoderSettings
from recap.encoders.load import load_encoder
from recap.encoders.vit import Encoder
from recap.io import read_image
from recap.io.resize import SquareResize

FILES = 20
ROUNDS = 30

Write = Callable[[Path, np.random.Generator], None]


@dataclass
class Times:
    """Seconds for one image: each file read, each run of the encoder."""

    read: list[float] = field(default_factory=list)
    encode: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return mean(self.read) / mean(self.encode)


def main(count: int = 1000, threads: int = 1, encoder: str = "dinov2-small") -> None:
    """Print a table; exit with 1 if reading does not keep up."""
    torch.set_num_threads(threads)
    model = load_encoder(EncoderSettings(name=encoder, random_weights=True))
    print(f"{encoder}, {model.input_px} px, float32, {threads} thread(s); reading on one thread")
    print(f"mean of {count} images read and of {ROUNDS} encoded, in ms/image")
    print(f"{'':<34}{'read':>10}{'encode':>10}{'ratio':>10}")
    slowest = 0.0
    for name, write in KINDS.items():
        with tempfile.TemporaryDirectory() as folder:
            times = measure(write_files(Path(folder), write), model, count)
        row = f"{1000 * mean(times.read):>10.1f}{1000 * mean(times.encode):>10.1f}"
        print(f"{name:<34}{row}{times.ratio:>10.3f}", flush=True)
        slowest = max(slowest, times.ratio)
    if slowest >= 1:
        raise typer.Exit(1)


def write_files(folder: Path, write: Write) -> list[Path]:
    paths = [folder / f"{number:03d}" for number in range(FILES)]
    for number, path in enumerate(paths):
        write(path, np.random.default_rng(number))
    return paths


def measure(paths: list[Path], model: Encoder, count: int) -> Times:
    """Read the files in turn until `count` are read, and encode one image after each share."""
    pixels = prepare(paths[0], model.input_px)[None]
    encode(model, pixels)
    times = Times()
    for share in np.array_split(np.arange(count), min(ROUNDS, count)):
        for number in share:
            path = paths[number % len(paths)]
            times.read.append(seconds(lambda path=path: prepare(path, model.input_px)))
        times.encode.append(seconds(lambda: encode(model, pixels)))
    return times


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def prepare(path: Path, size_px: int) -> torch.Tensor:
    """What scoring does with a file before the encoder sees it."""
    image = read_image(path)
    square = SquareResize(image.size_hw, size_px).apply(image.pixels)
    return torch.from_numpy(square).permute(2, 0, 1)


def encode(model: Encoder, pixels: torch.Tensor) -> None:
    with torch.inference_mode():
        model.taps(pixels)


def draw(rng: np.random.Generator, size_px: int, noise: float = 0.01) -> np.ndarray:
    """A body with organs in 0..1: ellipses on black, shaded and with noise."""
    y, x = np.mgrid[-1 : 1 : size_px * 1j, -1 : 1 : size_px * 1j]
    image = np.where((x / 0.9) ** 2 + (y / 0.7) ** 2 < 1, 0.4 + 0.1 * x * y, 0.0)
    for _ in range(12):
        at_y, at_x = rng.uniform(-0.5, 0.5, 2)
        high, wide = rng.uniform(0.05, 0.3, 2)
        inside = ((y - at_y) / high) ** 2 + ((x - at_x) / wide) ** 2 < 1
        image += inside * rng.uniform(-0.15, 0.15)
    return np.clip(image + rng.normal(0, noise, image.shape), 0, 1)


def png(size_px: int, dtype: Any = np.uint8, colour: bool = False) -> Write:
    def write(path: Path, rng: np.random.Generator) -> None:
        values = draw(rng, size_px)
        if colour:
            values = np.stack([values, values**1.5, values**0.7], axis=2)
        stored = np.rint(values * np.iinfo(dtype).max).astype(dtype)
        PillowImage.fromarray(stored).save(path, "PNG")

    return write


def dicom(syntax: str = ExplicitVRLittleEndian, size_px: int = 512) -> Write:
    """CT in 16 bits with a window, as scanners write it."""

    def write(path: Path, rng: np.random.Generator) -> None:
        stored = np.rint(draw(rng, size_px) * 2500).astype("<u2")
        dataset = ct_slice(stored)
        if syntax != ExplicitVRLittleEndian:
            plugin = {RLELossless: "pydicom", JPEGLSLossless: "pyjpegls"}.get(syntax, "pylibjpeg")
            dataset.compress(syntax, stored, encoding_plugin=plugin)
        dataset.save_as(path, enforce_file_format=True)

    return write


def lossless_jpeg(path: Path, rng: np.random.Generator) -> None:
    """Lossless JPEG, for which pydicom has no encoder."""
    import gdcm

    dicom()(path, rng)
    reader, writer = gdcm.ImageReader(), gdcm.ImageWriter()
    change = gdcm.ImageChangeTransferSyntax()
    reader.SetFileName(str(path))
    reader.Read()
    change.SetTransferSyntax(gdcm.TransferSyntax(gdcm.TransferSyntax.JPEGLosslessProcess14_1))
    change.SetInput(reader.GetImage())
    writer.SetFileName(str(path))
    if not change.Change():
        raise RuntimeError("gdcm did not write lossless JPEG")
    writer.SetFile(reader.GetFile())
    writer.SetImage(change.GetOutput())
    writer.Write()


def ct_slice(stored: np.ndarray) -> pydicom.Dataset:
    dataset = pydicom.Dataset()
    tags = {
        "SOPClassUID": CTImageStorage,
        "SOPInstanceUID": generate_uid(),
        "StudyInstanceUID": generate_uid(),
        "SeriesInstanceUID": generate_uid(),
        "PatientID": "P1",
        "Modality": "CT",
        "SamplesPerPixel": 1,
        "PhotometricInterpretation": "MONOCHROME2",
        "Rows": stored.shape[0],
        "Columns": stored.shape[1],
        "BitsAllocated": 16,
        "BitsStored": 12,
        "HighBit": 11,
        "PixelRepresentation": 0,
        "RescaleSlope": 1,
        "RescaleIntercept": -1024,
        "WindowCenter": 40,
        "WindowWidth": 400,
        "PixelSpacing": [0.7, 0.7],
        "ImageOrientationPatient": [1, 0, 0, 0, 1, 0],
        "ImagePositionPatient": [0, 0, 0],
    }
    for keyword, value in tags.items():
        setattr(dataset, keyword, value)
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.PixelData = stored.tobytes()
    dataset["PixelData"].VR = "OW"
    return dataset


KINDS: dict[str, Write] = {
    "PNG, 512×512, 8 bit": png(512),
    "PNG, 512×512, 16 bit": png(512, np.uint16),
    "PNG, 512×512, RGB": png(512, colour=True),
    "PNG, 1024×1024, 8 bit": png(1024),
    "DICOM, 512×512, not compressed": dicom(),
    "DICOM, 512×512, RLE": dicom(RLELossless),
    "DICOM, 512×512, JPEG-LS": dicom(JPEGLSLossless),
    "DICOM, 512×512, JPEG 2000": dicom(JPEG2000Lossless),
    "DICOM, 512×512, lossless JPEG": lossless_jpeg,
}


if __name__ == "__main__":
    typer.run(main)
