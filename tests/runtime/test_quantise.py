"""The images that int8 takes its ranges from."""

import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

from recap.config import ReadingSettings
from recap.data.cases import Found
from recap.io import Case
from recap.runtime import export


def test_images_are_drawn_evenly_and_decoded_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(11):
        grey = np.full((4, 4), 10 * number, np.uint8)
        Pillow.fromarray(grey).save(tmp_path / f"{number:02d}.png")
    open_it, opened = Found.open, []

    def watched(found: Found, reading: ReadingSettings) -> Case:
        assert all(case() is None for case in opened), "an earlier one is still in memory"
        case = open_it(found, reading)
        opened.append(weakref.ref(case))
        return case

    monkeypatch.setattr(Found, "open", watched)
    monkeypatch.setattr(export, "MOST_IMAGES", 5)
    detector = SimpleNamespace(
        card=SimpleNamespace(reading=ReadingSettings()),
        preprocess=lambda image: torch.from_numpy(np.ascontiguousarray(image.pixels)),
    )
    pixels = export.calibration_pixels(detector, tmp_path)
    drawn = [round(float(square.mean()) * 255) for square in pixels]
    assert drawn == [0, 30, 60, 90]
