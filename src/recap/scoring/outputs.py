"""What is written for a scored case beside its row: the map and the scores of its images."""

import csv
import io
from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path

import numpy as np

from recap._files import replacing, write_atomic
from recap.io import Case
from recap.scoring.cases import CasePrediction
from recap.scoring.parts import ImageScore
from recap.scoring.regions import regions_table
from recap.scoring.rows import number_text
from recap.types import Region

IMAGE_SCORES = [field.name for field in fields(ImageScore)]


def save_map(out: Path, name: str, case: Case, prediction: CasePrediction) -> str:
    """Write a case's map: a volume on its source's own grid as NIfTI, all else as .npy."""
    if case.grid is not None:
        from recap.io.nifti import write_map_volume

        file = f"maps/{name}.map.nii.gz"
        write_map_volume(out / file, prediction.map, case.grid)
        return file
    file = f"maps/{name}.npy"
    with replacing(out / file) as stream:
        np.save(stream, prediction.map, allow_pickle=False)
    return file


def save_regions(out: Path, name: str, regions: Sequence[Region]) -> str:
    """Write the regions of a case, the strongest first."""
    file = f"regions/{name}.csv"
    write_atomic(out / file, regions_table(regions))
    return file


def save_image_table(out: Path, name: str, prediction: CasePrediction) -> str:
    """Write the scores of a case's slices, frames or tiles, in their order."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["number", "row_px", "column_px", *IMAGE_SCORES])
    for number, image in enumerate(prediction.images):
        place = prediction.origins_px[number]
        writer.writerow([number, *place, *(number_text(value) for value in astuple(image))])
    file = f"images/{name}.csv"
    write_atomic(out / file, text.getvalue())
    return file
