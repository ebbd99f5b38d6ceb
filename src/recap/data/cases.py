"""From paths to cases: what to score under files, folders and zip archives."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from recap._archive import unpack_archive
from recap.config import ReadingSettings
from recap.data.folder import is_output, name_some, natural_key, walk
from recap.errors import InputError, counted
from recap.io.case import Case
from recap.io.decoding import BUDGET, not_there
from recap.io.formats import all_formats, is_named_image, is_unread_image, open_file, sniff
from recap.io.nifti import nifti_pair
from recap.io.raster import TILES, raster_px

if TYPE_CHECKING:
    from recap.io.dicom.series import Series

SCORING_BYTES = 36
"""For each pixel: the picture, its map and what is made of both, as it was measured."""
ALONE_BYTES = 10**9
"""What a picture may take while others are read and scored beside it."""
Skipped = tuple[Path, str]
"""A file that is no case, or a folder without any, and why."""
_OWN_OUTPUT = "a detector or results of recap, with pictures of its own"
"""The reason why a folder is left alone; every other reason is one about a file."""


class NoCasesError(InputError, code="empty"):
    """All was looked through, and nothing of it is an image."""


@dataclass(frozen=True)
class Unpacked:
    """An archive, and the folder that its files were unpacked to for a while."""

    archive: Path
    folder: Path


@dataclass(frozen=True)
class Found:
    """One case that has been found but not opened: its name, its files and who reads them."""

    name: str
    files: tuple[Path, ...]
    series: "Series | None" = None
    """The DICOM slices of one series; None for a file that is a case of its own."""
    unpacked: Unpacked | None = None
    """Where it came from, if out of an archive."""
    problem: str = ""
    """The reason why it cannot be opened, where that is known already."""

    @property
    def path(self) -> str:
        """Its file, or the folder of its slices; within the archive that it came out of."""
        return self.in_words(str(self.files[0].parent if self.series else self.files[0]))

    @property
    def read_alone(self) -> bool:
        """True where several of its kind would take too much memory at once, as volumes do.

        A picture that is larger than all of the memory is refused before it is decoded in vain.
        """
        if self.problem:
            return False
        if self.series is not None:
            return True
        kind = sniff(self.files[0])
        taken = raster_px(self.files[0]) * SCORING_BYTES if kind == "raster" else 0
        BUDGET.check(taken, str(self.files[0]), TILES)
        return taken > ALONE_BYTES or kind in ("nifti", "nrrd", "slide")

    def in_words(self, text: str) -> str:
        """A text about it that names the archive rather than where that was unpacked."""
        if self.unpacked is None:
            return text
        return text.replace(str(self.unpacked.folder), str(self.unpacked.archive))

    def open(self, reading: ReadingSettings) -> Case:
        """Open it; whatever is wrong with its files shows here, as an InputError."""
        if self.problem:
            raise InputError(self.problem)
        if self.series is None:
            return open_file(self.files[0], reading)
        from recap.io.dicom.series import open_series

        return open_series(self.series, reading)


@dataclass(frozen=True)
class Search:
    """Everything found, and the files that were passed over with the reason."""

    cases: tuple[Found, ...]
    skipped: tuple[Skipped, ...] = ()


def find_cases(paths: Sequence[Path], scratch: Path, leave_out: Sequence[Path] = ()) -> Search:
    """Find all cases under files, folders and zip archives; names keep the folder structure.

    DICOM slices of one series become one case. Archives are unpacked into `scratch`. Folders to
    leave out, such as those that results go to, are not searched.
    """
    cases: list[Found] = []
    skipped: list[Skipped] = []
    for number, path in enumerate(paths):
        path = Path(path)
        if not path.exists():
            raise InputError(f"{path}: {not_there(path, 'file or folder')}")
        found = _search(path, scratch, leave_out)
        # Two folders may hold the same names.
        folder = (path.name if path.is_dir() else path.parent.name) or "root"
        prefix = f"{number + 1}-{folder}/" if len(paths) > 1 else ""
        cases += [replace(case, name=prefix + case.name) for case in found.cases]
        skipped += found.skipped
    if not cases:
        raise NoCasesError(_nothing(paths, skipped))
    return Search(tuple(_with_unique_names(cases)), tuple(skipped))


def open_one_case(path: Path, reading: ReadingSettings) -> Case:
    """Open a file, or the only case that a folder holds."""
    if not path.is_dir():
        return open_file(path, reading)
    found = _search_folder(path)
    if not found.cases:
        raise NoCasesError(_nothing([path], found.skipped))
    if len(found.cases) > 1:
        names = name_some([Path(case.name) for case in found.cases])
        raise InputError(
            f"{path}: holds {len(found.cases)} cases ({names}), not one. Name one of them, or "
            f"score them all with `recap score BUNDLE {path} --out DIR`."
        )
    return found.cases[0].open(reading)


def _search(path: Path, scratch: Path, leave_out: Sequence[Path]) -> Search:
    if path.is_dir():
        return _search_folder(path, leave_out)
    try:
        if sniff(path) == "zip":
            return _search_zip(path, scratch)
    # One bad file must not stop the others: opening it will tell.
    except InputError as error:
        return Search((Found(path.name, (path,), problem=str(error)),))
    return Search((Found(path.name, nifti_pair(path) or (path,)),))


def _search_zip(path: Path, scratch: Path) -> Search:
    scratch.mkdir(parents=True, exist_ok=True)
    folder = scratch / f"{len(list(scratch.iterdir()))}-{path.stem}"
    unpack_archive(path, folder)
    found = _search_folder(folder)
    origin = Unpacked(path, folder)
    return Search(
        tuple(replace(case, unpacked=origin) for case in found.cases),
        tuple(
            (path / file.relative_to(folder), reason.replace(str(folder), str(path)))
            for file, reason in found.skipped
        ),
    )


def _search_folder(root: Path, leave_out: Sequence[Path] = ()) -> Search:
    formats: dict[Path, str] = {}
    skipped: list[Skipped] = []

    def enter(folder: Path) -> bool:
        if is_output(folder):
            skipped.append((folder, _OWN_OUTPUT))
            return False
        return True

    for file in sorted(walk(root, leave_out, enter), key=natural_key):
        kind, reason = _kind(file)
        if reason:
            skipped.append((file, reason))
        elif kind == "zip":
            skipped.append((file, "an archive inside a folder: name it on the command line"))
        else:
            formats[file] = kind
    dicom = [file for file, kind in formats.items() if kind == "dicom"]
    series, passed_over = _group_dicom(dicom, root) if dicom else ([], [])
    rest = [
        Found(file.relative_to(root).as_posix(), pair or (file,))
        for file, kind in formats.items()
        if kind != "dicom" and ((pair := nifti_pair(file)) is None or pair[0] == file)
    ]
    cases = sorted([*rest, *series], key=lambda case: natural_key(case.files[0]))
    return Search(tuple(cases), (*skipped, *passed_over))


def _kind(file: Path) -> tuple[str, str]:
    """The format of a file, and why it is left alone, if it is.

    A file that no reader knows is left alone, unless its name says that it is an image. A file
    that cannot be read may well be an image: it becomes a case, and opening that tells why.
    """
    named_so = is_named_image(file)
    try:
        kind = sniff(file)
    except InputError as error:
        return "unknown", "" if named_so or file.is_file() else str(error)
    if kind != "unknown" or named_so or is_unread_image(file):
        return kind, ""
    return kind, "not an image"


def _group_dicom(files: Sequence[Path], root: Path) -> tuple[list[Found], list[Skipped]]:
    """A file that cannot be read stays a case of its own, so that opening it tells why."""
    from recap.io.dicom.series import group_series

    cases: list[Found] = []
    skipped: list[Skipped] = []
    for series in group_series(files):
        if series.skipped:
            skipped += [(file, series.skipped) for file in series.files]
            continue
        name = Path(series.name).relative_to(root).as_posix()
        cases.append(Found(name, series.files, series if len(series.files) > 1 else None))
    return cases, skipped


def _with_unique_names(cases: Iterable[Found]) -> Iterator[Found]:
    cases = list(cases)
    taken = {case.name for case in cases}
    seen: set[str] = set()
    for case in cases:
        if case.name in seen:
            name = PurePosixPath(case.name)
            numbered = (str(name.with_name(f"{name.name}-{count}")) for count in itertools.count(2))
            case = replace(case, name=next(new for new in numbered if new not in taken))
            taken.add(case.name)
        seen.add(case.name)
        yield case


def _nothing(paths: Sequence[Path], skipped: Sequence[Skipped]) -> str:
    titles = ", ".join(row.title for row in all_formats() if row.suffixes)
    looked = f"no images. Looked for {titles}."
    if skipped:
        file, reason = skipped[0]
        looked += f" Left {count_skipped(skipped)} alone, such as {file.name}: {reason}"
    return f"{', '.join(map(str, paths))}: {looked}"


def count_skipped(skipped: Sequence[Skipped]) -> str:
    """Count the folders and files that were left alone, in words."""
    folders = sum(reason == _OWN_OUTPUT for _, reason in skipped)
    counts = {"folder": folders, "other file": len(skipped) - folders}
    return " and ".join(counted(number, word) for word, number in counts.items() if number)
