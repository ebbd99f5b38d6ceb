"""The DICOM files of a folder as cases: slices of one series together, other images alone.

Slices of one series, size and orientation are parted until each place is held once.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recap.config import ReadingSettings
from recap.errors import InputError
from recap.io.case import Case, DicomFrame, LazyImages
from recap.io.dicom.cases import Stack, open_dicom, read_frame, stack_case
from recap.io.dicom.file import careful, is_directory, open_file, scan_header, why_no_pixels
from recap.io.dicom.geometry import SAME_PLACE_MM, Plane, plane_of, same_frame, why_no_grid
from recap.io.dicom.header import MAKER_KEYWORDS, integer, is_own, text, why_beside_slide
from recap.io.window import parse_window

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
# The files of a series of these are slices of one body; of others, images of their own.
STACKED = ("CT", "MR", "PT")
_IMAGES = (
    *STACKED,
    *("CR", "DX", "ES", "IO", "MG", "NM", "OCT", "OP", "OT", "RF", "SM", "US", "XA", "XC"),
)
_NOT_IMAGES = {"SEG": "a segmentation", "RTDOSE": "a dose distribution"}


@dataclass(frozen=True, eq=False)
class Slice:
    """A single-frame file's place among others, as its header gives it."""

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
        covered = [{places[each.path] for each in part} for part in values.values()]
        if len(values) > 1 and all(len(found) == len(held) for found in covered):
            rest = keywords[number + 1 :]
            return [part for own in values.values() for part in _parts(own, rest)]
    return _parts_by_turn(slices, places, held)


def _parts_by_turn(
    slices: list[Slice], places: dict[Path, int], held: Counter[int]
) -> list[list[Slice]]:
    """Take the n-th image of each place as phase n, whether phases or slices are numbered first."""
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


def _place(each: Slice) -> float:
    return each.plane.place_mm if each.plane else 0.0


@dataclass(frozen=True, eq=False)
class Series:
    """Files that make one case, in the order in which they are shown."""

    name: str
    files: tuple[Path, ...]
    planes: tuple[Plane | None, ...] = ()
    size_hw: tuple[int, int] = (0, 0)
    skipped: str = ""
    """The reason why they are no images; such a series is not to be opened."""


def group_series(files: Sequence[Path]) -> list[Series]:
    """Sort DICOM files into cases by their headers.

    A file whose header cannot be read is a series of its own, so that opening it tells why.
    """
    series: list[Series] = []
    stacks: dict[object, list[list[Slice]]] = {}
    for path in sorted(set(files)):
        try:
            found = _scan(path)
        except InputError:
            found = Series(str(path), (path,))
        if isinstance(found, Series):
            series.append(found)
        else:
            _join(stacks.setdefault(found.group, []), found)
    for slices in (slices for group in stacks.values() for slices in group):
        series += _series_of(slices)
    return _with_own_names(sorted(series, key=lambda each: min(each.files)))


def open_series(series: Series, reading: ReadingSettings) -> Case:
    """Open a series: a volume where its slices make one, else frames in order."""
    if series.skipped:
        raise InputError(f"{series.name}: {series.skipped}")
    if len(series.files) == 1:
        return open_dicom(series.files[0], reading)
    planes = [plane for plane in series.planes if plane is not None]
    first = open_file(series.files[0])
    frames = [DicomFrame(path, 0) for path in series.files]
    if len(planes) == len(series.files) and not why_no_grid(planes):
        stack = Stack(
            series.name,
            planes,
            series.size_hw,
            first.identity(),
            frames,
            lambda number: (open_file(series.files[number]), 0),
        )
        return stack_case(stack, reading)
    window = parse_window(reading.window)
    images = LazyImages(
        len(series.files), lambda number: read_frame(open_file(series.files[number]), 0, window)
    )
    identity = replace(first.identity(), instance="")
    return Case("frames", series.name, images, identity, dicom_frames=frames)


def _scan(path: Path) -> Series | Slice:
    """A slice to be joined with others, or a file that stands alone."""
    with careful(path):
        header, has_pixels = scan_header(path, [*KEYWORDS, *MAKER_KEYWORDS])
        modality = text(header, "Modality")
        alone = Series(str(path), (path,))
        if is_own(header):
            return replace(alone, skipped="a result of recap, not an image.")
        if not has_pixels:
            # Without its pixels an image is damaged; what is no image at all is left out.
            named = len(header) and modality not in _IMAGES and not integer(header, "Rows")
            if is_directory(header) or named:
                return replace(alone, skipped=why_no_pixels(header))
            return alone
        if reason := why_beside_slide(header):
            return replace(alone, skipped=reason)
        if modality in _NOT_IMAGES:
            return replace(alone, skipped=f"holds {_NOT_IMAGES[modality]}, not an image.")
        if modality not in STACKED or integer(header, "NumberOfFrames") > 1:
            return alone
        return slice_of(path, header)


def _join(stacks: list[list[Slice]], new: Slice) -> None:
    """Put a slice to those that have its orientation and spacing."""
    for slices in stacks:
        planes = [each.plane for each in (slices[0], new) if each.plane]
        if not planes or (len(planes) == 2 and same_frame(planes)):
            slices.append(new)
            return
    stacks.append([new])


def _series_of(slices: list[Slice]) -> list[Series]:
    parts, copies = split(slices)
    found = [
        Series(str(copy.path), (copy.path,), skipped=f"a copy of {original.path}.")
        for copy, original in copies
    ]
    for number, part in enumerate(parts, start=1):
        first = part[0]
        name = f"series-{first.series_number or first.series.rpartition('.')[2] or 0}"
        if len(parts) > 1:
            name += f"-{number}"
        files = tuple(each.path for each in part)
        found.append(
            Series(
                str(files[0] if len(files) == 1 else min(files).parent / name),
                files,
                tuple(each.plane for each in part),
                first.size_hw,
            )
        )
    return found


def _with_own_names(series: list[Series]) -> list[Series]:
    """Tell apart what has the same number in the same folder."""
    seen: Counter[str] = Counter()
    named = []
    for each in series:
        seen[each.name] += 1
        again = seen[each.name] > 1
        named.append(replace(each, name=f"{each.name}-{seen[each.name]}") if again else each)
    return named
