"""Whatever a file holds: it reads, or one `InputError` says in one line why it does not."""

import random
import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from dicom_files import pydicom_data_files, pydicom_files, save_dicom, save_series

from recap.config import ReadingSettings
from recap.errors import InputError
from recap.io.dicom import is_dicom, open_dicom
from recap.io.dicom_series import group_series, open_series

READING = ReadingSettings()
LARGEST_SEED = 200_000


def corrupt(data: bytes, chance: random.Random) -> bytes:
    """Flip bytes, cut, or copy a piece of the file over another."""
    damaged = bytearray(data)
    way = chance.randrange(4)
    if way == 0:
        return bytes(damaged[: chance.randrange(len(damaged))])
    # Most of a file is pixels; the head is where a single byte does harm.
    reach = len(damaged) if way == 1 else min(len(damaged), 2500)
    for _ in range(chance.randint(1, 12)):
        at = chance.randrange(reach)
        if way == 3:
            start, length = chance.randrange(len(damaged)), chance.randint(1, 40)
            damaged[at : at + length] = damaged[start : start + length]
        else:
            damaged[at] = chance.randrange(256)
    return bytes(damaged)


def read_all(path: Path) -> str:
    """Read every frame, alone and as a series: "read" or "refused"; other errors go through."""
    is_dicom(path)
    for series in group_series([path]):
        assert series.files == (path,)
    try:
        case = open_dicom(path, READING)
        # A damaged header may promise a million frames; all are alike.
        for number in {0, len(case.images) // 2, len(case.images) - 1}:
            image = case.images[number]
            assert image.pixels.dtype == np.float32
            assert image.pixels.min() >= 0
            assert image.pixels.max() <= 1
        return "read"
    except InputError as error:
        assert "\n" not in str(error)
        assert str(error).startswith(str(path))
        return "refused"


def fuzz(folder: Path, seeds: list[Path], count: int) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    path = folder / "damaged.dcm"
    for number in range(count):
        chance = random.Random(number)
        path.write_bytes(corrupt(seeds[number % len(seeds)].read_bytes(), chance))
        outcomes[read_all(path)] += 1
    return outcomes


def small(files: list[Path]) -> list[Path]:
    return [file for file in files if is_dicom(file) and file.stat().st_size < LARGEST_SEED]
