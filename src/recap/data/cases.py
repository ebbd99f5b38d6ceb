"""From paths to cases: what to score under files, folders and zip archives."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from recap.config import ReadingSettings
from recap.data.folder import natural_key, walk
from recap.errors import InputError
from recap.fetch import unpack_archive
from recap.io.case import Case
from recap.io.read import open_file
from recap.io.sniff import Format, sniff

if TYPE_CHECKING:
    from recap.io.dicom_series import Series

Skipped = tuple[Path, str]
"""A file that is no case, and why."""

# A file in a folder that no reader knows is left alone, unless its name says it is an image.
IMAGE_SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp"),
    *(".dcm", ".dicom", ".nii", ".nii.gz", ".nrrd", ".svs", ".ndpi", ".mrxs", ".scn"),
)


@dataclass(frozen=True)
class Found:
    """One case that has been found but not opened: its name, its files and who reads them."""

    name: str
    files: tuple[Path, ...]
    series: "Series | None" = None
    """The DICOM slices of one series; None for a file that is a case of its own."""

    def open(self, reading: ReadingSettings) -> Case:
        """Open it; whatever is wrong with its files shows here, as an InputError."""
        if self.series is None:
            return open_file(self.files[0], reading)
        from recap.io.dicom_series import open_series

        return open_series(self.series, reading)


@dataclass(frozen=True)
class Search:
    """Everything found, and the files that were passed over with the reason."""

    cases: tuple[Found, ...]
    skipped: tuple[Skipped, ...] = ()


def find_cases(paths: Sequence[Path], scratch: Path) -> Search:
    """Find all cases under files, folders and zip archives; names keep the folder structure.

    DICOM slices of one series become one case. Archives are unpacked into `scratch`.
    """
    cases: list[Found] = []
    skipped: list[Skipped] = []
    for number, path in enumerate(paths):
        path = Path(path)
        if not path.exists():
            raise InputError(f"{path}: there is no such file or folder.")
        found = _search(path, scratch)
        # Two folders may hold the same names.
        prefix = f"{number + 1}-{_folder_name(path)}/" if len(paths) > 1 else ""
        cases += [replace(case, name=prefix + case.name) for case in found.cases]
        skipped += found.skipped
    if not cases:
        where = ", ".join(map(str, paths))
        raise InputError(
            f"{where}: no images. Looked for pictures, DICOM, NIfTI, NRRD, slides."
        )
    return Search(tuple(_with_unique_names(cases)), tuple(skipped))


def _search(path: Path, scratch: Path) -> Search:
    if path.is_dir():
        return _search_folder(path)
    if sniff(path) == "zip":
        return _search_zip(path, scratch)
    return Search((Found(path.name, (path,)),))


def _search_zip(path: Path, scratch: Path) -> Search:
    folder = scratch / f"{len(list(scratch.iterdir()))}-{path.stem}"
    unpack_archive(path, folder)
    return _search_folder(folder)


def _search_folder(root: Path) -> Search:
    formats: dict[Path, Format] = {}
    skipped: list[Skipped] = []
    for file in sorted(walk(root), key=natural_key):
        try:
            kind = sniff(file)
        except InputError:
            kind = "unknown"
        if kind == "unknown" and not file.name.lower().endswith(IMAGE_SUFFIXES):
            skipped.append((file, "not an image"))
        elif kind == "zip":
            skipped.append((file, "an archive inside a folder: name it on the command line"))
        else:
            formats[file] = kind
    dicom = [file for file, kind in formats.items() if kind == "dicom"]
    series, passed_over = _group_dicom(dicom, root) if dicom else ([], [])
    rest = [
        Found(file.relative_to(root).as_posix(), (file,))
        for file, kind in formats.items()
        if kind != "dicom"
    ]
    cases = sorted([*rest, *series], key=lambda case: natural_key(case.files[0]))
    return Search(tuple(cases), (*skipped, *passed_over))


def _group_dicom(files: Sequence[Path], root: Path) -> tuple[list[Found], list[Skipped]]:
    """A file that cannot be read stays a case of its own, so that opening it tells why."""
    from recap.io.dicom_series import group_series

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
    seen: dict[str, int] = {}
    for case in cases:
        count = seen[case.name] = seen.get(case.name, 0) + 1
        if count == 1:
            yield case
            continue
        name = PurePosixPath(case.name)
        yield replace(case, name=str(name.with_name(f"{name.name}-{count}")))


def _folder_name(path: Path) -> str:
    return (path.name if path.is_dir() else path.parent.name) or "root"
