"""A case: one thing to score, as images that are decoded one at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, overload

from recap.config import ReadingSettings
from recap.io.volume import Grid, Volume
from recap.io.window import own_window, parse_window
from recap.types import Identity, Image

CaseKind = Literal["image", "frames", "volume", "slide"]


class LazyImages(Sequence[Image]):
    """Images that are read when they are asked for and not kept, so that memory stays bounded."""

    def __init__(self, count: int, read: Callable[[int], Image]) -> None:
        self._count = count
        self._read = read

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Image: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Image]: ...
    def __getitem__(self, index: int | slice) -> Image | Sequence[Image]:
        if isinstance(index, slice):
            chosen = range(self._count)[index]
            return LazyImages(len(chosen), lambda number: self._read(chosen[number]))
        if not -self._count <= index < self._count:
            raise IndexError(index)
        return self._read(index % self._count)


class DicomFrame(NamedTuple):
    """One frame of a DICOM file, counted from 0."""

    path: Path
    number: int


@dataclass(frozen=True, eq=False)
class Case:
    """One picture, a clip of frames, a volume in space, or the tissue tiles of a slide.

    A volume's `grid` brings a stack of maps back to the source's stored array. `size_hw` is that
    of the whole source where the images are tiles of it. `dicom_frames` says where a case out of
    DICOM files came from: for each image, or for each slice of a volume as its files store them.
    """

    kind: CaseKind
    source: str
    images: Sequence[Image]
    identity: Identity = field(default_factory=Identity)
    grid: Grid | None = None
    size_hw: tuple[int, int] | None = None
    dicom_frames: Sequence[DicomFrame] = ()


def volume_case(volume: Volume, reading: ReadingSettings) -> Case:
    """The slices of a volume, cut when asked for; one window serves all of them."""
    window = parse_window(reading.window) or volume.window or own_window(volume.values)
    return Case(
        kind="volume",
        source=volume.source,
        images=LazyImages(len(volume.values), lambda number: volume.image(number, window)),
        identity=volume.identity,
        grid=volume.grid,
    )
