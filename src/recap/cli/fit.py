"""`recap fit`: from images to a detector."""

import shlex
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recap._files import alone, check_place, make_folder
from recap.cli.options import (
    Config,
    Device,
    Overrides,
    Preset,
    RandomWeights,
    check_window,
    method_settings,
)
from recap.cli.terminal import bars
from recap.errors import RecapError, counted

if TYPE_CHECKING:
    from recap.config import Settings
    from recap.scoring.bundle import Card
    from recap.scoring.detector import Detector
    from recap.scoring.fit import Where
    from recap.types import Sample


def fit_command(
    out: Annotated[Path, typer.Option(help="Where to save the detector (a folder).")],
    normal: Annotated[Path | None, typer.Option(help="Folder of normal images.")] = None,
    abnormal: Annotated[
        Path | None,
        typer.Option(help="Folder of abnormal images; without it, normal images alone."),
    ] = None,
    masks: Annotated[
        Path | None, typer.Option(help="Folder of lesion masks named like the abnormal images.")
    ] = None,
    dataset: Annotated[
        Path | None, typer.Option(help="A data set: folder or .csv manifest; its pool is used.")
    ] = None,
    shots: Annotated[
        int | None, typer.Option(min=1, help="With --dataset: images per class.")
    ] = None,
    support: Annotated[
        Path | None, typer.Option(help="With --dataset: a support list instead of a draw.")
    ] = None,
    draw: Annotated[
        int | None, typer.Option(min=0, help="With --dataset --shots: which reproducible draw (0).")
    ] = None,
    sources: Annotated[
        Path | None, typer.Option(help="Zero-shot: folder of NAME_AD domains.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Zero-shot: the domain held out, e.g. Brain.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(help="recap, a method to compare it with (docs/peers), or one of your own."),
    ] = "recap",
    encoder: Annotated[
        str | None, typer.Option(help="Encoder name, folder or hub id (dinov2-small).")
    ] = None,
    preset: Preset = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of every generator (0).")] = None,
    config: Config = None,
    overrides: Overrides = None,
    device: Device = "auto",
    random_weights: RandomWeights = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing detector.")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Discard unfinished work and start anew.")
    ] = False,
    keep_thumbnails: Annotated[
        bool,
        typer.Option(
            "--keep-thumbnails",
            help="Put small pictures (128 px) of the normal images into the detector, for reports "
            "and the viewer. They are images of patients.",
        ),
    ] = False,
) -> None:
    """Fit a detector on a handful of images.

    On your own folders, on a benchmark domain (--dataset), or zero-shot on other domains
    (--sources). An interrupted fit goes on when the same command is run again.

    \b
    recap fit --normal healthy/ --out brain.recap
    recap fit --normal healthy/ --abnormal lesions/ --masks masks/ --out b.recap
    recap fit --dataset data/Brain_AD --shots 4 --out brain.recap
    recap fit --sources data/ --target Brain --out brain.recap
    """
    chosen = {"name": encoder, "random_weights": random_weights or None}
    settings = method_settings(method, preset, config, overrides, seed=seed, encoder=chosen)
    check_window(settings.reading.window)
    check_place(out)
    if out.exists() and not out.is_dir():
        raise RecapError(f"{out} is a file, but a detector is a folder. Choose another --out.")
    if out.exists() and not overwrite:
        raise RecapError(f"{out} exists already. Pass --overwrite to replace it.")
    if out.exists():
        from recap.scoring.bundle import read_card

        read_card(out)  # refuse a folder that is not a detector before the work, not after it
    place = out.resolve()  # "." has no name, and of a link the bundle lies elsewhere
    work_dir = place.with_name(place.name + ".partial")
    pictures: dict[int, bytes] = {}
    with _only_fit(out, work_dir, restart):
        with bars() as report:
            where: Where = {"work_dir": work_dir, "device": device, "progress": report}
            if sources is not None or target is not None:
                _refuse_beside(
                    "--sources and --target",
                    {"--normal": normal, "--abnormal": abnormal, "--masks": masks}
                    | {"--dataset": dataset, "--shots": shots, "--support": support, "--draw": draw}
                    | {"--keep-thumbnails": keep_thumbnails or None},
                )
                detector = _zero_shot(sources, target, settings, where)
            else:
                samples = _samples(method, normal, abnormal, masks, dataset, shots, support, draw)
                if keep_thumbnails:
                    pictures = _thumbnails(samples, settings)
                detector = _few_shot(method, samples, settings, where)
        _finish(detector, out, work_dir, pictures)


@contextmanager
def _only_fit(out: Path, work_dir: Path, restart: bool) -> Iterator[None]:
    """Refuse a second fit to one place: of two, the first to end would remove the work of both."""
    make_folder(work_dir.parent)
    with alone(work_dir.with_name(f".{work_dir.name}.lock"), written=out):
        if restart and work_dir.exists():
            shutil.rmtree(work_dir)
        yield


def _samples(
    method: str,
    normal: Path | None,
    abnormal: Path | None,
    masks: Path | None,
    dataset: Path | None,
    shots: int | None,
    support: Path | None,
    draw: int | None,
) -> "list[Sample]":
    from recap.data import draw_support, folder_samples, read_domain, read_support
    from recap.methods.registry import find_method

    if normal is None and dataset is None:
        raise RecapError(
            "Say what to fit on: --normal DIR [--abnormal DIR [--masks DIR]], "
            "or --dataset DIR --shots K, or --sources ROOT --target NAME."
        )
    if dataset is None:
        assert normal is not None
        _refuse_beside("--normal", {"--shots": shots, "--support": support, "--draw": draw})
        return folder_samples(normal, abnormal, masks)
    folders = {"--normal": normal, "--abnormal": abnormal, "--masks": masks}
    _refuse_beside("--dataset", folders)
    if (shots is None) == (support is None):
        raise RecapError("With --dataset give either --shots K or --support FILE.")
    domain = read_domain(dataset)
    if support is not None:
        _refuse_beside("--support", {"--draw": draw})
        chosen = read_support(domain, support)
    else:
        normal_only = find_method(method).normal_only
        chosen = draw_support(domain, shots or 0, draw or 0, normal_only=normal_only)
    return [*chosen.normal, *chosen.abnormal]


def _refuse_beside(option: str, given: Mapping[str, object]) -> None:
    """Options that would be ignored are a mistake to be told of."""
    wrong = [name for name, value in given.items() if value is not None]
    if wrong:
        raise RecapError(f"{', '.join(wrong)} cannot stand beside {option}.")


def _few_shot(
    method: str, samples: "list[Sample]", settings: "Settings", where: "Where"
) -> "Detector":
    from recap.data.support import load_support
    from recap.methods.registry import find_method
    from recap.scoring.fit import fit_support

    healthy = find_method(method).normal_only
    used = [sample for sample in samples if not (healthy and sample.abnormal)]
    support = load_support(used, settings.reading)
    domain = samples[0].domain if samples else ""
    return fit_support(support, settings, domain=domain, **where)


def _thumbnails(samples: "list[Sample]", settings: "Settings") -> dict[int, bytes]:
    from recap.data.support import load_support, thumbnails

    normal = [sample for sample in samples if not sample.abnormal]
    return thumbnails(load_support(normal, settings.reading))


def _zero_shot(
    sources: Path | None, target: str | None, settings: "Settings", where: "Where"
) -> "Detector":
    from recap.data import find_domains
    from recap.methods.images import leave_one_out
    from recap.scoring.fit import fit_sources

    if sources is None or target is None:
        raise RecapError("Zero-shot needs both --sources ROOT and --target NAME.")
    domains = leave_one_out(find_domains(sources), target)
    return fit_sources(domains, settings, domain=target, **where)


def _finish(detector: "Detector", out: Path, work_dir: Path, pictures: Mapping[int, bytes]) -> None:
    detector.save(out, thumbnails=pictures)
    shutil.rmtree(work_dir, ignore_errors=True)
    card = detector.card
    counts = {
        label: sum(record["label"] == label for record in card.support)
        for label in ("normal", "abnormal")
    }
    typer.echo(f"{out}: {card.mode}, preset {card.settings.preset}, encoder {card.encoder.name}")
    typer.echo(f"Fitted on {counts['normal']} normal and {counts['abnormal']} abnormal images.")
    typer.echo(card.statement)
    if assumed := _assumed(card):
        typer.echo(assumed)
    bundle = shlex.quote(str(out))
    typer.echo(f"Threshold:  recap calibrate {bundle} --normal OTHER_NORMAL_IMAGES")
    typer.echo(f"New images: recap score {bundle} NEW_IMAGES --out results --report")
    if pictures:
        shown = counted(len(pictures), "normal image")
        typer.echo(f"It holds small pictures of {shown}: images of patients.")


def _assumed(card: "Card") -> str | None:
    """Say what was assumed of the encoder."""
    from recap.encoders._cache import assumed_normalisation
    from recap.encoders.weights import status

    settings = card.settings.encoder
    if settings.random_weights or settings.normalise != "own":
        return None
    folder = status(card.encoder.name).folder
    return None if folder is None else assumed_normalisation(card.encoder.name, folder)
