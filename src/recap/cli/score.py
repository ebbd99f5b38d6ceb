"""`recap score`: from images to a table, maps, overlays, a page and DICOM results."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recap.cli.options import Axis, Device, RandomWeights, Runtime, Window
from recap.cli.terminal import bars, printable
from recap.errors import InputError, SettingsError, counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recap.data.cases import Skipped
    from recap.results.table import Row
    from recap.score_request import FolderResult

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
    from recap.api import score_folder
    from recap.results.table import parse_shard
    from recap.score_request import ScoreRequest, result_folders

    bundles, inputs = _split(paths)
    part = parse_shard(shard)
    wanted: dict[str, Any] = {
        "report": report,
        "parquet": parquet,
        "dicom": dicom,
        "ignore": ignore,
        "window": window,
        "axis": axis,
        "runtime": runtime,
        "device": device,
        "random_weights": random_weights,
        "workers": workers,
        "batch": batch,
    }
    _check_engine(engine, shard, {"--jobs": jobs, "--ray-address": ray_address})
    with bars() as progress:
        if engine == "ray":
            from recap.cli.score_ray import score_on_ray

            request = ScoreRequest(result_folders(bundles, out), tuple(inputs), **wanted)
            score_on_ray(request, jobs, ray_address, progress)
        # After a cluster there is nothing left to score, only tables to join.
        results = score_folder(bundles, inputs, out, **wanted, shard=part, progress=progress)
    _name_skipped(results[0].left_alone)
    for result in results:
        _summarise(result)
    if any(result.failed for result in results):
        raise typer.Exit(1)


def _split(paths: "Sequence[Path]") -> "tuple[list[Path], list[Path]]":
    """Tell the detectors from what they are to score."""
    from recap.scoring.bundle import read_card
    from recap.scoring.bundle_folder import CARD, Bundle

    bundles = [path for path in paths if Bundle(path).has(CARD)]
    inputs = [path for path in paths if path not in bundles]
    if not bundles:
        read_card(paths[0])  # tells what is wrong with it
    if not inputs:
        raise InputError("Say what to score: recap score BUNDLE… PATH… --out DIR.")
    return bundles, inputs


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


def _summarise(result: "FolderResult") -> None:
    rows, out = result.rows, result.out
    good = [row for row in rows if row.status == "ok"]
    images = sum(int(row.images) for row in good)
    cases = f"{len(good)} of {counted(len(rows), 'case')} ({counted(images, 'image')})"
    typer.echo(f"Scored {cases}: {result.table}")
    for line in _decisions(good):
        typer.echo(line)
    if result.page is not None:
        typer.echo(f"Report: {result.page}")
    if result.renewed:
        typer.echo(f"Written anew to match the table: {', '.join(result.renewed)}")
    if result.dicom is not None:
        typer.echo(_dicom_results(result.dicom, result))
    errors = [row.error for row in rows if row.status != "ok"]
    _show_some(errors, f"see {result.table}")
    _show_some(result.warnings, f"see {out / 'manifest.json'}")


def _decisions(rows: "list[Row]") -> list[str]:
    """Count what was called what, and say why nothing was decided about the others."""
    verdicts = Counter(row.decision for row in rows if row.decision)
    named = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    reasons = Counter(row.rule for row in rows if not row.decision)
    return [f"Decided: {named}"] * bool(verdicts) + [
        f"{count} without a decision: {why.removeprefix('no decision: ')}"
        for why, count in reasons.items()
    ]


def _dicom_results(count: int, result: "FolderResult") -> str:
    if count:
        return f"DICOM results of {counted(count, 'case')}: {result.out / 'dicom'}"
    if any(row.error for row in result.rows if row.status == "ok"):
        return "No DICOM results: they could not be made."
    return "No DICOM results: none of the cases is DICOM that could be scored."


def _show_some(lines: list[str], more: str) -> None:
    for line in lines[:SHOWN]:
        typer.echo(f"  {printable(line)}", err=True)
    if len(lines) > SHOWN:
        typer.echo(f"  and {len(lines) - SHOWN} more: {more}", err=True)


def report_command(
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="A folder that `recap score --out` wrote.")
    ],
    parquet: Annotated[
        bool, typer.Option("--parquet", help="Also write scores.parquet (extra `tables`).")
    ] = False,
) -> None:
    """Write the page of a scored folder again: OUT/report.html.

    One page with the table, histogram, pictures, regions, and why. It needs neither the detector
    nor the images. Pictures with a map that can be faded, and the explanations, are there if the
    folder was scored with --report.
    """
    from recap.report.page import write_score_page

    if parquet:
        from recap.results.table import PARQUET, read_rows, write_parquet

        write_parquet(read_rows(out / "scores.csv"), out / PARQUET)
    typer.echo(write_score_page(out))
