"""`recap score`: from images to a table, maps and overlays."""

from pathlib import Path
from typing import Annotated

import typer

from recap.cli.bars import bars
from recap.cli.options import Device, RandomWeights


def score_command(
    bundle: Annotated[Path, typer.Argument(help="A detector saved by `recap fit`.")],
    paths: Annotated[list[Path], typer.Argument(help="Images, or folders of images.")],
    out: Annotated[Path, typer.Option(help="Folder for the results.")],
    device: Device = "auto",
    random_weights: RandomWeights = False,
) -> None:
    """Score images: scores.csv, raw maps (.npy), overlays (.png) and manifest.json.

    Files that cannot be read become rows with status=error, and the exit code is 1. Running the
    same command again scores only what is missing.
    """
    from recap.report import overlay, save_png
    from recap.scoring.batch import find_cases, score_to_folder
    from recap.scoring.detector import load
    from recap.training.devices import choose_device
    from recap.types import Image, Prediction

    cases = find_cases(paths)
    detector = load(bundle, str(choose_device(device)), random_weights)

    def draw(image: Image, prediction: Prediction, path: Path) -> None:
        save_png(overlay(image, prediction.map, detector.map_scale), path)

    with bars() as report:
        rows = score_to_folder(
            detector,
            cases,
            out,
            draw,
            lambda done, total, name: report("score", done, total, name),
        )
    failed = [row for row in rows if row.status != "ok"]
    typer.echo(f"{len(rows) - len(failed)} images scored, {len(failed)} failed: {out}/scores.csv")
    for row in failed[:5]:
        typer.echo(f"  {row.error}", err=True)
    if failed:
        raise typer.Exit(1)
