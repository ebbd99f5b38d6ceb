"""`recap score`: from images to a table, maps and overlays."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recap.cli.bars import bars
from recap.cli.options import Device, RandomWeights

if TYPE_CHECKING:
    from recap.config import ReadingSettings
    from recap.scoring.rows import Row


def score_command(
    bundle: Annotated[Path, typer.Argument(help="A detector saved by `recap fit`.")],
    paths: Annotated[
        list[Path],
        typer.Argument(help="Pictures, DICOM, NIfTI, NRRD, slides; folders or zips of them."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the results.")],
    window: Annotated[
        str | None,
        typer.Option(help="file, abdomen, lung, brain, bone or LOW,HIGH; else as when fitted."),
    ] = None,
    axis: Annotated[
        str | None,
        typer.Option(help="auto, axial, coronal or sagittal slices; else as when fitted."),
    ] = None,
    device: Device = "auto",
    random_weights: RandomWeights = False,
) -> None:
    """Score images: scores.csv, raw maps, overlays (.png) and manifest.json.

    The slices of a DICOM series are scored as one volume; a volume's map is a NIfTI file that lies
    over its source, and images/ has the score of every slice.
    Files that cannot be read become rows with status=error, and the exit code is 1. Running the
    same command again scores only what is missing.
    """
    from tempfile import TemporaryDirectory

    from recap.data.cases import find_cases
    from recap.io import Case
    from recap.peers.loading import load
    from recap.report import case_overlay, save_png
    from recap.scoring.batch import score_to_folder
    from recap.scoring.cases import CasePrediction
    from recap.training.devices import choose_device

    with TemporaryDirectory(prefix="recap-") as scratch:
        search = find_cases(paths, Path(scratch))
        detector = load(bundle, str(choose_device(device)), random_weights)

        def draw(case: Case, prediction: CasePrediction, path: Path) -> None:
            save_png(case_overlay(case, prediction, detector.map_scale), path)

        with bars() as report:
            rows = score_to_folder(
                detector,
                search.cases,
                out,
                draw,
                report,
                _reading(detector.card.settings.reading, window, axis),
            )
    if search.skipped:
        typer.echo(f"{len(search.skipped)} other files were left alone.", err=True)
    _summarise(rows, out)


def _reading(fitted: "ReadingSettings", window: str | None, axis: str | None) -> "ReadingSettings":
    from recap.config import settings_from_dict
    from recap.io.window import parse_window

    given = {k: v for k, v in {"window": window, "axis": axis}.items() if v is not None}
    if window is not None:
        parse_window(window)  # a wrong one is told before the first file
    return settings_from_dict({"reading": {**fitted.model_dump(), **given}}).reading


def _summarise(rows: "list[Row]", out: Path) -> None:
    failed = [row for row in rows if row.status != "ok"]
    images = sum(int(row.images) for row in rows if row.status == "ok")
    typer.echo(
        f"Scored {len(rows) - len(failed)} of {len(rows)} cases ({images} images): {out}/scores.csv"
    )
    for row in failed[:5]:
        typer.echo(f"  {row.error}", err=True)
    if failed:
        raise typer.Exit(1)
