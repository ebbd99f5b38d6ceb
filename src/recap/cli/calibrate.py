"""`recap calibrate`: thresholds, regions and the domain's range from images of known label."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from recap._files import check_place
from recap.cli.options import Axis, Device, RandomWeights, Runtime, Window
from recap.cli.terminal import bars, printable
from recap.errors import RecapError

if TYPE_CHECKING:
    from recap.scoring.calibration import Calibration
    from recap.scoring.domain_guard import DomainRange

SHOWN = 5


def calibrate_command(
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="A detector saved by `recap fit`.")
    ],
    normal: Annotated[
        list[Path],
        typer.Option(
            metavar="PATH", help="Healthy images that it was not fitted on: files, folders or zips."
        ),
    ],
    abnormal: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH", help="Images with lesions, for operating points and a probability."
        ),
    ] = None,
    fpr: Annotated[
        float, typer.Option(help="Share of normal images that may be called abnormal.")
    ] = 0.05,
    sensitivity: Annotated[
        float | None,
        typer.Option(help="Of the operating point named so (0.95); needs --abnormal."),
    ] = None,
    decide_by: Annotated[
        Literal["fpr", "f1", "youden", "sensitivity"],
        typer.Option(help="The rule that decides; all but fpr need --abnormal."),
    ] = "fpr",
    out: Annotated[
        Path | None, typer.Option(help="Where to save; else BUNDLE itself is replaced.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace another detector at --out.")
    ] = False,
    window: Window = None,
    axis: Axis = None,
    runtime: Runtime = None,
    device: Device = "auto",
    random_weights: RandomWeights = False,
) -> None:
    """Set the threshold, so that scores come with decisions.

    \b
    recap calibrate brain.recap --normal more_healthy/

    Every score then has a p-value, a decision and its rule. Normal images alone give a threshold
    with a guaranteed false-positive rate. Give cases of the kind that will be scored: volumes as
    volumes, pictures as pictures. A detector calibrated with --window or --axis reads files so
    from then on.
    """
    from recap.api import calibrate
    from recap.scoring.calibration import DEFAULT_SENSITIVITY, check_request

    if sensitivity is not None and not abnormal:
        raise RecapError(
            f"--sensitivity {sensitivity} needs abnormal images. Give some with --abnormal, or "
            "leave it out."
        )
    aim = DEFAULT_SENSITIVITY if sensitivity is None else sensitivity
    check_request(aim, decide_by, bool(abnormal))
    _check_out(bundle, out or bundle, overwrite)
    with bars() as report:
        found = calibrate(
            bundle,
            normal,
            abnormal or None,
            window=window,
            axis=axis,
            runtime=runtime,
            device=device,
            random_weights=random_weights,
            fpr=fpr,
            sensitivity=aim,
            decide_by=decide_by,
            progress=report,
        )
    found.detector.save(out or bundle, keep=bundle)
    for line in _summary(found.calibration, found.detector.card.domain):
        typer.echo(line)
    typer.echo(f"Saved: {out or bundle}")
    for line in _stale_graphs(out or bundle, found.calibration):
        typer.echo(line, err=True)
    for line in _left_out(list(found.unreadable.values())):
        typer.echo(printable(line), err=True)
    if found.unreadable:
        raise typer.Exit(1)


def _check_out(bundle: Path, out: Path, overwrite: bool) -> None:
    """Tell before the first image what would fail after the last."""
    from recap.scoring.bundle import read_card
    from recap.scoring.bundle_folder import CARD, Bundle

    check_place(out)
    read_card(bundle)
    Bundle(bundle).files()  # all of them go with it
    if not out.exists() or out.resolve() == bundle.resolve():
        return
    if not Bundle(out).has(CARD):
        raise RecapError(f"{out} exists and is no detector. Choose another --out.")
    if not overwrite:
        raise RecapError(f"{out} exists already. Pass --overwrite to replace it.")
    read_card(out)  # one that cannot be read is not replaced


def _left_out(reasons: list[str]) -> list[str]:
    more = len(reasons) - SHOWN
    shown = [f"  left out: {reason}" for reason in reasons[:SHOWN]]
    return [*shown, f"  left out: {more} more"] if more > 0 else shown


def _stale_graphs(folder: Path, calibration: "Calibration") -> list[str]:
    """Name the graphs that decide as before; recap itself decides by the new calibration."""
    from recap.runtime.record import exports, remedy
    from recap.scoring.bundle_folder import Bundle

    bundle = Bundle(folder)
    return [
        f"{bundle.named(kind)} still decides by its earlier calibration, for programs other than "
        f"recap. Run `{remedy(bundle, kind)}` again."
        for kind, record in exports(bundle).items()
        if record.calibration not in (None, calibration.digest)  # None: it decides nothing
    ]


def _summary(calibration: "Calibration", domain: "DomainRange | None") -> list[str]:
    from recap.errors import counted
    from recap.scoring.conformal import percent

    n, diseased = len(calibration.normal_scores), len(calibration.abnormal_scores or ())
    lines = [f"Normal: {n}   abnormal: {diseased}   kind: {calibration.kind}"]
    if calibration.operating_points:
        lines.append(f"{'rule':<12} {'threshold':>9}  sensitivity (95 %)   specificity (95 %)")
    for point in calibration.operating_points:
        mark = "*" if point.name == calibration.decided_by else " "
        rates = "  ".join(
            f"{value:.3f} ({low:.3f}–{high:.3f})"
            for value, (low, high) in (
                (point.sensitivity, point.intervals["sensitivity"]),
                (point.specificity, point.intervals["specificity"]),
            )
        )
        lines.append(f"{point.name + mark:<12} {point.threshold:>9.4g}  {rates}")
    if calibration.operating_points and calibration.repeats_patients:
        lines.append(
            f"The 95 % intervals are those of independent images; the {n} normal ones show "
            f"{counted(calibration.patients or 0, 'patient')} only, so they are too narrow."
        )
    lines += [
        f"Rule: {calibration.rule}.",
        f"Regions: where the map reaches {calibration.map_level:.4g}, as at most "
        f"{percent(calibration.fpr)} of normal ones do anywhere.",
    ]
    if domain is not None:
        lines.append(f"Domain: {domain.rule}.")
    return [*lines, f"Promise: {calibration.guarantee}"]
