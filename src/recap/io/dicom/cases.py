"""DICOM frames as cases: a picture, a clip of frames, or slices that make a volume.

A volume is shown as acquired, or cut along another axis of the body.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recap.config import Axis, ReadingSettings
from recap.errors import InputError, RecapError, require
from recap.io.case import Case, DicomFrame, LazyImages
from recap.io.decoding import BUDGET
from recap.io.dicom.display import Display
from recap.io.dicom.file import DicomFile, careful, open_file
from recap.io.dicom.geometry import Plane, as_acquired, stored_affine, why_no_grid
from recap.io.volume import BYTES_PER_VOXEL, MAX_VOXELS, Grid, Volume, grid_for
from recap.io.window import own_window, parse_window
from recap.types import FloatArray, Identity, Image, Window

# A range taken from so many slices, and so many pixels of each, is that of the whole.
_RANGE_SLICES, _RANGE_STEPS = 32, 256
_MAGIC, _MAGIC_AT = b"DICM", 128
# What a file without the magic word may start with: group 2 or 8, either byte order.
_FIRST_GROUPS = (b"\x02\0", b"\x08\0", b"\0\x02", b"\0\x08")
_PROBE_BYTES = 2**16


@dataclass(frozen=True, eq=False)
class Stack:
    """Slices sorted by place, each a frame of some file."""

    source: str
    planes: Sequence[Plane]
    size_hw: tuple[int, int]
    identity: Identity
    frames: Sequence[DicomFrame]
    pick: Callable[[int], tuple[DicomFile, int]]


def stack_case(stack: Stack, reading: ReadingSettings) -> Case:
    """The stack as a case whose slices are decoded when they are asked for."""
    given = parse_window(reading.window)
    if reading.axis == "auto":
        return _case_as_acquired(stack, given)
    return _case_cut(stack, reading.axis, given)


def _case_as_acquired(stack: Stack, given: Window | None) -> Case:
    grid = as_acquired(stack.planes, stack.size_hw)

    @cache
    def shared_range() -> Window:
        return _own_range(stack)

    def read(number: int) -> Image:
        stored, display, file, frame = _slice(stack, number)
        window = given
        if window is None and display.is_grey(stored) and not display.says_how:
            window = shared_range()
        with BUDGET.room(file.layout.showing_bytes, str(file.path)):
            unit = display.unit(stored, window)
        return Image(
            unit,
            file.name(frame),
            grid.slice_geometry(number),
            file.identity(),
        )

    return _case(stack, grid, LazyImages(len(stack.planes), read))


def _case_cut(stack: Stack, axis: Axis, given: Window | None) -> Case:
    """Cut along an axis; the window is the middle slice's, and linear."""
    rows, columns = stack.size_hw
    shape = (columns, rows, len(stack.planes))
    if rows * columns * len(stack.planes) > MAX_VOXELS:
        raise InputError(
            f"{stack.source}: {len(stack.planes)} slices of {rows}x{columns} pixels are more than "
            "can be held in memory to be cut anew. Set reading.axis=auto.",
            path=stack.source,
        )
    grid = grid_for(shape, stored_affine(stack.planes), axis, stack.source)
    file, frame = stack.pick(len(stack.planes) // 2)
    display = file.display(frame)
    named = display.window.ends if display.window and not display.voi else None

    # In memory from the first slice that is asked for until the case is dropped.
    @cache
    def volume() -> tuple[Volume, Window]:
        with BUDGET.room(math.prod(shape) * BYTES_PER_VOXEL, stack.source):
            values = grid.take(_values(stack).transpose(2, 1, 0))
            window = given or named or _own_range(stack)
        return Volume(values, grid, stack.source, stack.identity, named), window

    def read(number: int) -> Image:
        whole, window = volume()
        image = whole.image(number, window)
        return replace(image, pixels=1 - image.pixels) if display.inverted else image

    return _case(stack, grid, LazyImages(shape[grid.axes[0]], read))


def _case(stack: Stack, grid: Grid, images: LazyImages) -> Case:
    identity = replace(stack.identity, instance="")
    return Case("volume", stack.source, images, identity, grid, dicom_frames=stack.frames)


def _slice(stack: Stack, number: int) -> tuple[NDArray[Any], Display, DicomFile, int]:
    file, frame = stack.pick(number)
    stored = file.stored(frame)
    if stored.shape[:2] != stack.size_hw:
        raise InputError(
            f"{file.path}: has {stored.shape[0]}x{stored.shape[1]} pixels, but the other slices "
            f"of its series have {stack.size_hw[0]}x{stack.size_hw[1]}. Keep them apart.",
            path=file.path,
        )
    return stored, file.display(frame), file, frame


def _values(stack: Stack) -> FloatArray:
    """All slices in the modality's unit: (slices, rows, columns)."""
    values = np.empty((len(stack.planes), *stack.size_hw), np.float32)
    for number in range(len(values)):
        stored, display, file, _ = _slice(stack, number)
        if not display.is_grey(stored):
            raise InputError(
                f"{file.path}: slices in colour are shown as acquired only. Set reading.axis=auto.",
                path=file.path,
            )
        values[number] = display.in_unit(stored)
    return values


def _own_range(stack: Stack) -> Window:
    """One range for the whole stack: with one each, empty slices would show nothing but noise."""
    found = []
    count = len(stack.planes)
    for number in np.unique(np.linspace(0, count - 1, _RANGE_SLICES).round().astype(int)):
        # A slice that cannot be read says so when it is asked for.
        with suppress(InputError):
            stored, display, _, _ = _slice(stack, int(number))
            step = [max(1, size // _RANGE_STEPS) for size in stored.shape[:2]]
            few = stored[:: step[0], :: step[1]]
            found.append(display.in_unit(few)[display.shown(few)])
    return own_window(np.concatenate([*found, np.empty(0, np.float32)]))


def is_dicom(path: Path) -> bool:
    """Tell by content, without reading more than a little; false for what cannot be opened."""
    try:
        with path.open("rb") as stream:
            head = stream.read(_MAGIC_AT + len(_MAGIC))
            if head[_MAGIC_AT:] == _MAGIC:
                return True
            return head[:2] in _FIRST_GROUPS and _parses(head + stream.read(_PROBE_BYTES), path)
    except OSError:
        return False


def _parses(data: bytes, path: Path) -> bool:
    """Tell whether the start of a file without the magic word is a data set all the same."""
    try:
        with careful(path):
            pydicom = require("pydicom", "dicom")
            header = pydicom.dcmread(
                BytesIO(data),
                stop_before_pixels=True,
                force=True,
                specific_tags=["SOPClassUID", "Rows"],
            )
            return bool(header.get("SOPClassUID") or header.get("Rows"))
    except InputError:
        return False
    except RecapError:  # without pydicom the guess stands, and reading says what to install
        return True


def open_dicom(path: Path, reading: ReadingSettings) -> Case:
    """Open a file; its frames are decoded when they are asked for."""
    window = parse_window(reading.window)
    file = open_file(path)
    identity = file.identity()
    count = file.layout.frames
    if count > 1 and (stack := _stack_of(file)):
        return stack_case(stack, reading)
    return Case(
        kind="image" if count == 1 else "frames",
        source=str(path),
        images=LazyImages(count, lambda number: read_frame(file, number, window)),
        identity=identity,
        dicom_frames=[DicomFrame(path, number) for number in range(count)],
    )


def read_frame(file: DicomFile, number: int, window: Window | None) -> Image:
    """One frame as an image, through a given window or else through what the file says."""
    return Image(
        file.unit(number, window),
        file.name(number),
        file.geometry(number),
        file.identity(),
    )


def _stack_of(file: DicomFile) -> Stack | None:
    """The frames of a file as slices sorted by place, if they make a volume."""
    placed: list[tuple[float, int, Plane]] = []
    for number, plane in enumerate(file.planes()):
        if plane is None:
            return None
        placed.append((plane.place_mm, number, plane))
    placed.sort(key=lambda each: each[:2])
    planes = [plane for _, _, plane in placed]
    if why_no_grid(planes):
        return None
    return Stack(
        source=str(file.path),
        planes=planes,
        size_hw=(file.layout.rows, file.layout.columns),
        identity=file.identity(),
        frames=[DicomFrame(file.path, number) for _, number, _ in placed],
        pick=lambda slice_number: (file, placed[slice_number][1]),
    )
