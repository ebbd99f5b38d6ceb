"""Slices of one series, size and orientation, parted until each place is held once."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recap.io.dicom_geometry import SAME_PLACE_MM, Plane, plane_of
from recap.io.dicom_tags import integer, text

# By what the images of one place may differ.
_DIFFERENCES = (
    *("ImageType", "EchoTime", "DiffusionBValue"),
    *("TemporalPositionIdentifier", "AcquisitionNumber"),
)
KEYWORDS = [
    *_DIFFERENCES,
    *("PatientID", "IssuerOfPatientID"),
    *("SOPClassUID", "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID", "SeriesNumber"),
    *("Modality", "InstanceNumber", "NumberOfFrames", "Rows", "Columns", "SamplesPerPixel"),
    *("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing"),
    *("SpacingBetweenSlices", "SliceThickness"),
]


@dataclass(frozen=True, eq=False)
class Slice:
    """What the header of a single-frame file says of its place among others."""

    path: Path
    series: str
    series_number: int
    instance: str
    order: int
    size_hw: tuple[int, int]
    group: tuple[object, ...]
    """Slices that differ in this never belong together."""
    plane: Plane | None
    labels: dict[str, str]


def slice_of(path: Path, header: Any) -> Slice:
    """A slice from its header."""
    labels = {keyword: text(header, keyword) for keyword in _DIFFERENCES}
    # A file that names no series is taken to belong to its folder.
    series = text(header, "SeriesInstanceUID")
    size_hw = (integer(header, "Rows"), integer(header, "Columns"))
    localiser = "LOCALIZER" in labels["ImageType"].upper()
    return Slice(
        path=path,
        series=series,
        series_number=integer(header, "SeriesNumber"),
        instance=text(header, "SOPInstanceUID"),
        order=integer(header, "InstanceNumber"),
        size_hw=size_hw,
        group=(
            # Careless anonymising gives several patients the same study and series.
            text(header, "PatientID"),
            text(header, "IssuerOfPatientID"),
            text(header, "StudyInstanceUID"),
            series or path.parent,
            size_hw,
            integer(header, "SamplesPerPixel"),
            localiser,
        ),
        plane=plane_of(header),
        labels=labels,
    )


def split(slices: Sequence[Slice]) -> tuple[list[list[Slice]], list[tuple[Slice, Slice]]]:
    """Slices that are shown together, and the copies that were left out with their originals."""
    ordered = sorted(slices, key=lambda each: (each.order, str(each.path)))
    if any(each.plane is None for each in ordered):
        return [ordered], []
    kept, copies = _without_copies(ordered)
    return _parts(kept, _DIFFERENCES), copies


def _without_copies(slices: list[Slice]) -> tuple[list[Slice], list[tuple[Slice, Slice]]]:
    seen: dict[tuple[str, float, int], Slice] = {}
    kept, copies = [], []
    for each in slices:
        # The place is part of it because careless anonymising gives all slices the same name.
        key = (each.instance, round(_place(each), 2), each.order)
        if each.instance and key in seen:
            copies.append((each, seen[key]))
        else:
            seen[key] = each
            kept.append(each)
    return kept, copies


def _parts(slices: list[Slice], keywords: Sequence[str]) -> list[list[Slice]]:
    """Part by the first difference that gives each part all places, then by the next."""
    places = _places(slices)
    held = Counter(places[each.path] for each in slices)
    if max(held.values()) == 1:
        return [sorted(slices, key=_place)]
    if len(held) == 1:  # a clip
        return [slices]
    for number, keyword in enumerate(keywords):
        values = defaultdict(list)
        for each in slices:
            values[each.labels[keyword]].append(each)
        if len(values) > 1 and all(_covers(part, places, len(held)) for part in values.values()):
            rest = keywords[number + 1 :]
            return [part for own in values.values() for part in _parts(own, rest)]
    return _parts_by_turn(slices, places, held)


def _parts_by_turn(
    slices: list[Slice], places: dict[Path, int], held: Counter[int]
) -> list[list[Slice]]:
    """Whether phases or slices are numbered first, the n-th image of each place is phase n."""
    times = set(held.values())
    if len(times) > 1:  # no phases: some places are held by more images than others
        return [slices]
    turns: Counter[int] = Counter()
    parts: list[list[Slice]] = [[] for _ in range(times.pop())]
    for each in slices:
        place = places[each.path]
        parts[turns[place]].append(each)
        turns[place] += 1
    return [sorted(part, key=_place) for part in parts]


def _places(slices: list[Slice]) -> dict[Path, int]:
    """The number of the place that each slice holds; rounding must not part neighbours."""
    ordered = sorted(slices, key=_place)
    places, number = {}, 0
    for before, each in zip([ordered[0], *ordered], ordered, strict=False):
        number += _place(each) - _place(before) > SAME_PLACE_MM
        places[each.path] = number
    return places


def _covers(part: list[Slice], places: dict[Path, int], count: int) -> bool:
    return len({places[each.path] for each in part}) == count


def _place(each: Slice) -> float:
    return each.plane.place_mm if each.plane else 0.0
