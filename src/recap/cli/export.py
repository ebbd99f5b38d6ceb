"""`recap export`: a detector as one graph for a faster runtime."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from recap.cli.options import RandomWeights
from recap.cli.terminal import bars
from recap.errors import RecapError

if TYPE_CHECKING:
    from recap.runtime.record import ExportRecord


def export_command(
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="A detector saved by `recap fit`.")
    ],
    to: Annotated[Literal["onnx", "openvino"], typer.Option(help="Which runtime it is for.")],
    int8: Annotated[
        bool, typer.Option("--int8", help="Compute in eight bits (openvino); changes scores.")
    ] = False,
    calibration: Annotated[
        Path | None, typer.Option(help="With --int8: a folder of typical images, some 100.")
    ] = None,
    random_weights: RandomWeights = False,
) -> None:
    """Export a detector to ONNX or OpenVINO, for faster scoring.

    The graph is written into the bundle, for `recap score --runtime`. It takes pixels at the
    encoder's size and returns score, map and all else, of a calibrated detector its decisions too.
    It is compared with torch on built-in images and kept only if it agrees to 1e-4; of an int8
    graph the change is measured and written into its record.
    """
    from recap.api import export

    if int8 != (calibration is not None):
        raise RecapError("--int8 and --calibration DIR belong together: give both or neither.")

    with bars() as report:
        record = export(
            bundle, to, int8=calibration, random_weights=random_weights, progress=report
        )
    _summarise(bundle, record)


def _summarise(bundle: Path, record: "ExportRecord") -> None:
    from recap.scoring.bundle_folder import Bundle

    differences = record.largest_difference
    typer.echo(
        f"{Bundle(bundle).named(record.runtime)}: compared with torch on {record.checked_on} "
        f"images, the score differs by {differences['score']:.1e} at most, the map by "
        f"{differences['map']:.1e}."
    )
    if record.int8 is not None:
        seen = record.int8["calibration"]
        typer.echo(
            f"int8 changes the score of {seen['images']} calibration images by "
            f"{seen['mean_change_of_score']:.1e} on average, {seen['largest_change_of_score']:.1e} "
            f"at most; their scores spread by {seen['spread_of_scores']:.1e}."
        )
    typer.echo(f"Use it with: recap score {bundle} --runtime {record.runtime} …")
