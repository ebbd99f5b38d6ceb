"""Slices that make a volume: shown as acquired, or cut along another axis of the body."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recap.config import Axis, ReadingSettings
from recap.errors import InputError
from recap.io.budget import BUDGET
from recap.io.case import Case, DicomFrame, LazyImages
from recap.io.dicom_display import Display
from recap.io.dicom_file import DicomFile
from recap.io.dicom_geometry import Plane, as_acquired, stored_affine
from recap.io.volume import Grid, Volume, grid_for
from recap.io.voxels import BYTES_PER_VOXEL, MAX_VOXELS
from recap.io.window import own_window, parse_window
from recap.types import FloatArray, Identity, Image, Window

# A range taken from so many slices, and so many pixels of each, is that of the whole.
_RANGE_SLICES, _RANGE_STEPS = 32, 256


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
