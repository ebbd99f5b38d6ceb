"""`recap data check`: what a data folder holds and what is wrong with it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recap._files import write_atomic
from recap.cli.bars import bars
from recap.cli.words import printable
from recap.errors import counted

if TYPE_CHECKING:
    from recap.data.check import DataReport

MOST_SIZES = 5


def check_command(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH", help="A data set (folder or .csv manifest), or a folder of them."
        ),
    ],
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Also write all of the report to this file."),
    ] = None,
    show: Annotated[int, typer.Option(min=0, help="Problems of each kind to name here.")] = 5,
) -> None:
    """Read every file of a data set and say what is there.

    The exit code is 1 if there are problems.
    """
    from recap.data.check import inspect_all

    with bars() as report:
        found = inspect_all(path, report)
    for data in found:
        for line in _lines(data, show):
            typer.echo(printable(line))
    problems = sum(len(data.problems) for data in found)
    if json_file is not None:
        content = {"path": str(path), "problems": problems, "data": [d.as_json() for d in found]}
        write_atomic(json_file, json.dumps(content, indent=2) + "\n")
    if problems:
        raise typer.Exit(1)


def _lines(data: "DataReport", show: int) -> list[str]:
    lines = [f"{data.name}  ({data.layout or 'unknown'} layout)  {data.root}"]
    for split, images in data.images.items():
        counts = ", ".join(f"{count} {label}" for label, count in images.items())
        patients = f", {counted(data.patients[split], 'patient')}" if data.patients[split] else ""
        lines.append(f"  {split:<6} {counts}, {counted(data.masks[split], 'mask')}{patients}")
    if data.patients_in_pool_and_test:
        shared = counted(len(data.patients_in_pool_and_test), "patient")
        lines.append(f"  in pool and test: {shared}")
    sizes = [f"{count} of {size}" for size, count in list(data.sizes.items())[:MOST_SIZES]]
    others = len(data.sizes) - MOST_SIZES
    more = [counted(others, "other size")] if others > 0 else []
    lines += [f"  sizes  {', '.join([*sizes, *more])}"] if sizes else []
    colours = ", ".join(f"{count} {colour}" for colour, count in data.colours.items())
    lines += [f"  colour {colours}"] if colours else []
    lines += [
        f"  more   {counted(count, 'image')} in {folder}/, checked alike"
        for folder, count in data.further.items()
    ]
    lines += [
        f"  unused {counted(count, 'file')} in {folder}/" for folder, count in data.ignored.items()
    ]
    return [*lines, *_problem_lines(data, show)]


def _problem_lines(data: "DataReport", show: int) -> list[str]:
    if not data.problems:
        return ["  no problems found"]
    lines = []
    for kind in dict.fromkeys(problem.kind for problem in data.problems):
        these = [problem for problem in data.problems if problem.kind == kind]
        lines.append(f"  {kind}: {len(these)}")
        lines += [f"    {problem.path}: {problem.reason}" for problem in these[:show]]
        lines += [f"    … and {len(these) - show} more (--json)"] if len(these) > show else []
    return lines
