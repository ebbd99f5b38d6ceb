"""`recap evaluate`: metrics on a test split."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from recap._files import check_file, write_atomic
from recap.cli.options import Device, RandomWeights, Runtime
from recap.cli.terminal import bars, printable, unmatched_exclusions
from recap.errors import some


def evaluate_command(
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="A detector saved by `recap fit`.")
    ],
    dataset: Annotated[
        Path,
        typer.Argument(
            metavar="DATASET", help="A data set: folder or .csv manifest; its test split is used."
        ),
    ],
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Also write the result to this file."),
    ] = None,
    exclude: Annotated[
        Path | None,
        typer.Option(help="Test images to leave out: the exclude.txt of `recap data audit`."),
    ] = None,
    runtime: Runtime = None,
    device: Device = "auto",
    random_weights: RandomWeights = False,
) -> None:
    """Measure a detector on a test split.

    Image metrics and, with masks, pixel metrics.
    """
    from recap.api import evaluate

    if json_file is not None:
        check_file(json_file)
    with bars() as report:
        result = evaluate(
            bundle,
            dataset,
            exclude=exclude,
            runtime=runtime,
            device=device,
            random_weights=random_weights,
            progress=report,
        )
    for line in _numbers(result):
        typer.echo(line)
    for line in _warnings(result):
        typer.echo(f"Warning: {printable(line)}", err=True)
    if json_file is not None:
        write_atomic(json_file, json.dumps(result, indent=2) + "\n")


def _numbers(result: dict[str, Any]) -> Iterator[str]:
    if result["excluded"] is not None:
        yield "{images} of {of} test images excluded".format(**result["excluded"])
    for level in ("image", "pixel"):
        for metric, value in (result[level] or {}).items():
            shown = "–" if value is None else f"{value:.4f}"
            yield f"{level} {metric:<30} {shown}"
    if result["pixel"] is None:
        why = "its masks mark nothing" if result["empty_masks"] else "this domain has no masks"
        yield f"pixel {'':<30} – ({why})"


def _warnings(result: dict[str, Any]) -> Iterator[str]:
    if result["without_mask"]:
        yield (
            f"abnormal images without a mask, though others have one: {result['without_mask']}. "
            "Pixel metrics leave them out."
        )
    if result["empty_masks"]:
        yield f"masks that mark nothing: {some(result['empty_masks'])}. Draw them again."
    unmatched = (result["excluded"] or {}).get("unmatched")
    if unmatched:
        yield unmatched_exclusions(result["excluded"]["list"], unmatched, result["domain"])
    if result["domain_is_a_source"]:
        yield (
            f"this detector was fitted on images of a data set named {result['domain']}: here it "
            "is not zero-shot."
        )
    shared = result["support_images_in_test"]
    if shared:
        yield f"test images that this detector was fitted on, byte for byte: {shared}."
