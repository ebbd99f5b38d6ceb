"""`recap evaluate`: metrics on a test split."""

import json
from pathlib import Path
from typing import Annotated

import typer

from recap.cli.bars import bars
from recap.cli.options import Device, RandomWeights, Runtime


def evaluate_command(
    bundle: Annotated[Path, typer.Argument(help="A detector saved by `recap fit`.")],
    dataset: Annotated[Path, typer.Argument(help="A benchmark folder NAME_AD; test/ is used.")],
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the result to this file.")
    ] = None,
    exclude: Annotated[
        Path | None,
        typer.Option(help="Test images to leave out: the exclude.txt of `recap data audit`."),
    ] = None,
    runtime: Runtime = None,
    device: Device = "auto",
    random_weights: RandomWeights = False,
) -> None:
    """Measure a detector on a test split: image metrics and, with masks, pixel metrics."""
    from recap.data import read_domain
    from recap.data.exclusions import read_exclusions
    from recap.runtime.choice import choose_runtime
    from recap.runtime.loading import load
    from recap.scoring.evaluate import evaluate
    from recap.training.devices import choose_device

    domain = read_domain(dataset)
    excluded = None if exclude is None else read_exclusions(exclude)
    detector = load(bundle, str(choose_device(device)), random_weights)
    if runtime is not None:
        choose_runtime(detector, runtime, bundle, side_by_side=True)
    with bars() as report:
        result = evaluate(
            detector,
            domain,
            lambda done, total: report("score", done, total, ""),
            exclude=excluded,
        )
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if result["excluded"] is not None:
        typer.echo("{images} of {of} test images excluded".format(**result["excluded"]))
    for level in ("image", "pixel"):
        for metric, value in (result[level] or {}).items():
            shown = "–" if value is None else f"{value:.4f}"
            typer.echo(f"{level} {metric:<30} {shown}")
    if result["pixel"] is None:
        typer.echo(f"pixel {'':<30} – (this domain has no masks)")
    if result["without_mask"]:
        typer.echo(
            f"Warning: {result['without_mask']} abnormal images have no mask, though others do; "
            "pixel metrics leave them out.",
            err=True,
        )
    shared = result["support_images_in_test"]
    if shared:
        typer.echo(
            f"Warning: {shared} test images are files that this detector was fitted on.", err=True
        )
