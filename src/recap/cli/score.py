"""`recap score`: from images to a table, maps, overlays, a page and DICOM results."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recap._files import scratch_folder
from recap.cli.bars import bars
from recap.cli.options import Axis, Device, RandomWeights, Runtime, Window
from recap.cli.words import printable
from recap.errors import SettingsError, counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recap.cli.score_job import Outcome
    from recap.data.cases import Skipped
    from recap.scoring.rows import Row

SHOWN = 5
"""Lines of one kind on the terminal; all are in files."""


def score_command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="BUNDLE PATH",
            help="One or more detectors saved by `recap fit`, and what to score: pictures, DICOM, "
            "NIfTI, NRRD, slides; folders or zips of them.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the results.")],
    report: Annotated[
        bool, typer.Option("--report", help="Also a page: report.html, with pictures and why.")
    ] = False,
    parquet: Annotated[
        bool, typer.Option("--parquet", help="Also scores.parquet (extra `tables`).")
    ] = False,
    dicom: Annotated[
        bool, typer.Option("--dicom", help="Also DICOM results of DICOM files (extra `dicom`).")
    ] = False,
    ignore: Annotated[
        Path | None,
        typer.Option(help="Folder of masks named like the cases: no regions where they are set."),
    ] = None,
    window: Window = None,
    axis: Axis = None,
    runtime: Runtime = None,
    device: Device = "auto",
    random_weights: RandomWeights = False,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Threads that read ahead of the model; else one per core, up to 4."
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Images scored at a time. On a GPU they are one batch (16), and last digits may "
            "depend on it; on a processor they run side by side (one per core).",
        ),
    ] = None,
    shard: Annotated[
        str,
        typer.Option(
            metavar="I/N",
            help="Score one part of the cases, for N machines with one --out. When all are done, "
            "the same command without it joins their tables.",
        ),
    ] = "1/1",
    engine: Annotated[
        str, typer.Option(help="local, or ray: a cluster whose machines share the folders.")
    ] = "local",
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="ray: detectors at work; else one per GPU or machine."),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(help="ray: HOST:PORT of a cluster, or auto; else one on this machine."),
    ] = None,
) -> None:
    """Score images: a table, maps, overlays and, if wanted, a page.

    \b
    recap score brain.recap new_cases/ --out results/ --report

    --out then holds scores.csv, raw maps, overlays (.png), regions and manifest.json. The slices of
    a DICOM series are scored as one volume; a volume's map is a NIfTI file that lies over its
    source, and images/ has the score of every slice. With several detectors, each has a folder of
    its own in --out. Files that cannot be read become rows with status=error, and the exit code is
    1. Running the same command again scores only what is missing.
    """
    from recap.cli.score_job import Wanted
    from recap.cli.score_run import Order, Scoring, split_paths
    from recap.scoring.shards import parse_shard

    bundles, inputs = split_paths(paths, out)
    part = parse_shard(shard)
    wanted = Wanted(report, parquet, dicom, ignore, window, axis, workers, batch)
    wanted.check(part)
    _check_engine(engine, shard, {"--jobs": jobs, "--ray-address": ray_address})
    order = Order(bundles, tuple(inputs), wanted, device, random_weights, runtime)
    with scratch_folder() as scratch, bars() as progress:
        scoring = Scoring(order, scratch)
        if engine == "ray":
            from recap.cli.score_ray import score_on_ray

            score_on_ray(order, scoring.search.cases, jobs, ray_address, progress)
        # After a cluster there is nothing left to score, only tables to join.
        outcomes = scoring.score(part, progress)
    _name_skipped(scoring.search.skipped)
    for outcome in outcomes:
        _summarise(outcome)
    if any(outcome.failed for outcome in outcomes):
        raise typer.Exit(1)


def _check_engine(engine: str, shard: str, of_ray: "Mapping[str, object]") -> None:
    if engine not in ("local", "ray"):
        raise SettingsError(f"No engine is called '{engine}'. Choose from: local, ray.")
    for option, value in of_ray.items():
        if engine != "ray" and value is not None:
            raise SettingsError(f"{option} {value}: needs --engine ray.")
    if engine == "ray" and shard != "1/1":
        raise SettingsError(
            f"--shard {shard}: --engine ray makes shards of its own. Leave one of them out."
        )


def _name_skipped(skipped: "Sequence[Skipped]") -> None:
    from recap.data.cases import count_skipped
    from recap.data.folder import name_some

    if skipped:
        names = printable(name_some([path for path, _ in skipped]))
        typer.echo(
            f"Left alone: {count_skipped(skipped)} ({names}); see left_alone in manifest.json.",
            err=True,
        )


def _summarise(outcome: "Outcome") -> None:
    rows, out = outcome.rows, outcome.out
    good = [row for row in rows if row.status == "ok"]
    images = sum(int(row.images) for row in good)
    cases = f"{len(good)} of {counted(len(rows), 'case')} ({counted(images, 'image')})"
    typer.echo(f"Scored {cases}: {outcome.table}")
    for line in _decisions(good):
        typer.echo(line)
    if outcome.page is not None:
        typer.echo(f"Report: {outcome.page}")
    if outcome.renewed:
        typer.echo(f"Written anew to match the table: {', '.join(outcome.renewed)}")
    if outcome.dicom is not None:
        typer.echo(_dicom_results(outcome.dicom, outcome))
    errors = [row.error for row in rows if row.status != "ok"]
    _show_some(errors, f"see {outcome.table}")
    _show_some(outcome.warnings, f"see {out / 'manifest.json'}")


def _decisions(rows: "list[Row]") -> list[str]:
    """How many were called what, and why nothing was decided about the others."""
    verdicts = Counter(row.decision for row in rows if row.decision)
    named = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    reasons = Counter(row.rule for row in rows if not row.decision)
    return [f"Decided: {named}"] * bool(verdicts) + [
        f"{count} without a decision: {why.removeprefix('no decision: ')}"
        for why, count in reasons.items()
    ]


def _dicom_results(count: int, outcome: "Outcome") -> str:
    if count:
        return f"DICOM results of {counted(count, 'case')}: {outcome.out / 'dicom'}"
    if any(row.error for row in outcome.rows if row.status == "ok"):
        return "No DICOM results: they could not be made."
    return "No DICOM results: none of the cases is DICOM that could be scored."


def _show_some(lines: list[str], more: str) -> None:
    for line in lines[:SHOWN]:
        typer.echo(f"  {printable(line)}", err=True)
    if len(lines) > SHOWN:
        typer.echo(f"  and {len(lines) - SHOWN} more: {more}", err=True)
