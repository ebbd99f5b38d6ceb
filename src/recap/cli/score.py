"""`recap score`: from images to a table, maps, overlays, a page and DICOM results."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recap.cli.bars import bars
from recap.cli.options import Device, RandomWeights

if TYPE_CHECKING:
    from recap.cli.score_run import Outcome


def score_command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="BUNDLE... PATH...",
            help="One or more detectors saved by `recap fit`, then what to score: pictures, DICOM, "
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
    window: Annotated[
        str | None,
        typer.Option(help="file, abdomen, lung, brain, bone or LOW,HIGH; else as when fitted."),
    ] = None,
    axis: Annotated[
        str | None,
        typer.Option(help="auto, axial, coronal or sagittal slices; else as when fitted."),
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(help="torch, onnx, openvino, openvino-int8 (see `recap export`) or auto."),
    ] = None,
    device: Device = "auto",
    random_weights: RandomWeights = False,
) -> None:
    """Score images: scores.csv, raw maps, overlays (.png), regions and manifest.json.

    The slices of a DICOM series are scored as one volume; a volume's map is a NIfTI file that lies
    over its source, and images/ has the score of every slice. With several detectors, each has a
    folder of its own in --out.
    Files that cannot be read become rows with status=error, and the exit code is 1. Running the
    same command again scores only what is missing.
    """
    from tempfile import TemporaryDirectory

    from recap.cli.score_run import Wanted, load_detectors, score_with, split_paths
    from recap.data.cases import find_cases
    from recap.training.devices import choose_device

    bundles, inputs = split_paths(paths, out)
    wanted = Wanted(report, parquet, dicom, ignore, window, axis)
    wanted.check()
    with TemporaryDirectory(prefix="recap-") as scratch, bars() as progress:
        search = find_cases(inputs, Path(scratch) / "archives")
        memo = Path(scratch) / "encoded"
        where = str(choose_device(device))
        detectors = load_detectors(list(bundles), where, random_weights, runtime, memo)
        outcomes = [
            score_with(detector, bundle, search.cases, folder, wanted, progress)
            for detector, (bundle, folder) in zip(detectors, bundles.items(), strict=True)
        ]
    if search.skipped:
        typer.echo(f"{len(search.skipped)} other files were left alone.", err=True)
    for outcome in outcomes:
        _summarise(outcome)
    if any(outcome.failed for outcome in outcomes):
        raise typer.Exit(1)


def _summarise(outcome: "Outcome") -> None:
    rows, out = outcome.rows, outcome.out
    good = [row for row in rows if row.status == "ok"]
    images = sum(int(row.images) for row in good)
    typer.echo(f"Scored {len(good)} of {len(rows)} cases ({images} images): {out}/scores.csv")
    if outcome.page is not None:
        typer.echo(f"Report: {outcome.page}")
    if outcome.dicom is not None:
        typer.echo(f"DICOM results of {outcome.dicom} cases: {out}/dicom")
    errors = [row.error for row in rows if row.status != "ok"]
    for line in [*errors[:5], *outcome.warnings[:5]]:
        typer.echo(f"  {line}", err=True)
