"""Results of other files in the folder for results: they are neither dropped nor replaced."""

from collections.abc import Sequence
from pathlib import Path

from recap.data.cases import Found
from recap.errors import InputError
from recap.scoring.case_steps import digest_of
from recap.scoring.rows import Row
from recap.scoring.shards import WHOLE, finished_rows


def refuse_to_lose(out: Path, cases: Sequence[Found], inputs: Sequence[Path]) -> None:
    """Refuse a folder with results of files elsewhere that a run on `inputs` would lose.

    A table holds the cases of one run. Files that were taken away from the inputs go from it, and
    a folder that has moved is the same by its content. Those of another patient, whose slices
    may well have the same names, are neither.
    """
    if not out.is_dir():
        return
    found = {case.name: case for case in cases}
    roots = {path.absolute() for path in inputs}
    for row in finished_rows(out, WHOLE).values():
        place = Path(row.path).absolute()
        elsewhere = roots.isdisjoint((place, *place.parents))
        if elsewhere and not _is_same(row, found.get(row.case)):
            raise InputError(
                f"{out} holds results of other files, such as {row.path}, which this run would "
                "drop or replace. Choose another --out."
            )


def _is_same(row: Row, case: Found | None) -> bool:
    return case is not None and digest_of(case.files) == row.sha256
