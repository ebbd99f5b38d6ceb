"""The steps of `recap score`: which detectors, and which cases."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from recap.cli.score_job import Job, Outcome, Wanted, score_jobs, seeing_alike
from recap.data.cases import Search, find_cases
from recap.encoders.registry import RANDOM
from recap.errors import InputError, SettingsError
from recap.progress import Progress
from recap.runtime.choose import load_many
from recap.scoring.bundle import read_card
from recap.scoring.bundle_folder import CARD, Bundle
from recap.scoring.other_files import refuse_to_lose
from recap.scoring.regions import ignore_masks
from recap.scoring.rows import Row
from recap.scoring.run_manifest import add_to_manifest
from recap.scoring.shards import Shard


def split_paths(paths: Sequence[Path], out: Path) -> tuple[dict[Path, Path], list[Path]]:
    """The bundles, each with the folder for its results, and what they are to score."""
    bundles, inputs = _split(paths, out)
    for folder in bundles.values():
        _refuse_in_a_bundle(folder)
        _refuse_among_images(folder, inputs)
    return bundles, inputs


def _split(paths: Sequence[Path], out: Path) -> tuple[dict[Path, Path], list[Path]]:
    bundles = [path for path in paths if Bundle(path).has(CARD)]
    inputs = [path for path in paths if path not in bundles]
    if not bundles:
        read_card(paths[0])  # tells what is wrong with it
    if not inputs:
        raise InputError("Say what to score: recap score BUNDLE… PATH… --out DIR.")
    if len(bundles) == 1:
        return {bundles[0]: out}, inputs
    names = [bundle.resolve().name.removesuffix(".recap") for bundle in bundles]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            f"Two detectors are called '{twice[0]}', which is also where their results go. Rename "
            "one of them."
        )
    return {b: out / name for b, name in zip(bundles, names, strict=True)}, inputs


def _refuse_in_a_bundle(out: Path) -> None:
    """Bundles are copied and shared; pictures of patients must not travel with them."""
    place = out.resolve()
    for folder in (place, *place.parents):
        if Bundle(folder).has(CARD):
            raise InputError(
                f"--out {out} lies in the detector {folder}: results show patients, and whoever "
                "gets the detector would get them too. Choose another --out."
            )


def _refuse_among_images(out: Path, inputs: Sequence[Path]) -> None:
    """Results in a folder below the images are left out of the search; among them they cannot."""
    if any(path.resolve() == out.resolve() for path in inputs):
        raise InputError(
            f"--out {out} is also what to score: the next run would take overlays for images. "
            f"Choose another folder, such as {out / 'results'}."
        )


@dataclass(frozen=True)
class Order:
    """Everything that `recap score` was asked for; may travel to another machine."""

    bundles: dict[Path, Path]
    """Detectors, each with the folder for its results."""
    inputs: tuple[Path, ...]
    wanted: Wanted
    device: str
    """As asked for: each machine chooses what auto is."""
    random_weights: bool = False
    runtime: str | None = None


class Scoring:
    """An order under way: cases are found and detectors loaded, once for all shards."""

    def __init__(self, order: Order, scratch: Path) -> None:
        self._order = order
        ignore = order.wanted.ignore
        leave_out = [*order.bundles.values(), *([] if ignore is None else [ignore])]
        search = find_cases(order.inputs, scratch / "archives", leave_out)
        self.search = _with_unused_masks(search, ignore)
        _refuse_random_weights(order)
        for out in order.bundles.values():
            refuse_to_lose(out, self.search.cases, order.inputs)
        self._detectors = load_many(
            list(order.bundles), order.device, order.random_weights, order.runtime
        )

    def score(self, shard: Shard, progress: Progress) -> list[Outcome]:
        """Score a shard, or the whole, with every detector."""
        order, cases = self._order, self.search.cases
        jobs = [
            Job(detector, bundle, out, cases, order.wanted)
            for detector, (bundle, out) in zip(self._detectors, order.bundles.items(), strict=True)
        ]
        for job in jobs:  # all of them, before the first has worked for hours
            job.refuse_other_results(shard)
        rows: dict[Path, list[Row]] = {}
        for group in seeing_alike(jobs):
            rows |= score_jobs(group, progress, shard)
        left_alone = {str(file): reason for file, reason in self.search.skipped}
        for job in jobs:
            add_to_manifest(job.out, {}, shard=shard, left_alone=left_alone)
        return [job.outcome(rows[job.out], shard, progress) for job in jobs]


def _with_unused_masks(search: Search, ignore: Path | None) -> Search:
    """Ignore masks that belong to no case are named with what else was left alone."""
    if ignore is None:
        return search
    masks = ignore_masks(ignore, [Path(case.name) for case in search.cases])
    unused = [(mask, "an ignore mask that has the name of no case") for mask in masks.unused]
    return replace(search, skipped=(*search.skipped, *unused))


def _refuse_random_weights(order: Order) -> None:
    cards = [read_card(bundle) for bundle in order.bundles]
    if order.random_weights and all(card.encoder.sha256 != RANDOM for card in cards):
        names = ", ".join(map(str, order.bundles))
        raise SettingsError(
            f"--random-weights: {names} was not fitted on random weights, so nothing would change. "
            "Leave the option out."
        )
