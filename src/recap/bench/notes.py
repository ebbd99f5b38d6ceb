"""Footnotes on what our numbers are of: the encoder, the preset, the supports and the sources."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from recap.bench.agreement import draws_by_seed
from recap.bench.published import Note, caveats_by_dataset
from recap.bench.results import flat_settings, measured_on
from recap.data.benchmark import PAPER_NAMES
from recap.encoders.registry import find
from recap.errors import SettingsError
from recap.methods.registry import all_methods, resolve_settings


class Shown(NamedTuple):
    """A result in a table: the names that it stands under there, and its cell as it is kept."""

    method: str
    dataset: str
    seed: int
    cell: Mapping[str, Any]
    fitted_on: int = 0
    """Images among those it was measured on that it was fitted on, byte for byte."""
    without_mask: int = 0
    """Abnormal images that its pixel metrics leave out: others have a mask, theirs is not known."""
    counts: tuple[int, int] | None = None
    """Abnormal and normal images that it was measured on, where known."""


def own_notes(results: Iterable[Shown], variants: bool = False) -> tuple[Note, ...]:
    """The footnotes of our results where nothing published stands beside them; or of the variants
    of a study.

    A list of excluded images may have left out what supports and test share, or something else.
    """
    shown = [result for result in results if result.cell]
    leaky = [r for r in shown if r.cell["shots"] and measured_on(r.cell) == "test"]
    return run_notes(shown, variants=variants) + caveats_by_dataset(
        {_paper_name(r.dataset) for r in leaky}
    )


def run_notes(
    results: Iterable[Shown], beside_published: bool = False, variants: bool = False
) -> tuple[Note, ...]:
    """The footnotes of a table that shows these results; none for what is no cell.

    Beside published numbers it matters too that supports which we drew are not those of the paper.
    Of the variants of a study, whose names tell what differs, the settings that all share are told.
    """
    shown = [result for result in results if result.cell]
    few_shot = [result for result in shown if result.cell["shots"]]
    listed = [result for result in few_shot if result.cell.get("supports")]
    drawn = [result for result in few_shot if not result.cell.get("supports")]
    on_pool = [result for result in shown if measured_on(result.cell) == "pool"]
    notes = [
        _about("own-settings", "Ours: {}.", _settings(shown, variants)),
        _about(
            "on-pool",
            "{}: measured on what the supports leave of valid/, not on test/ (--on pool).",
            _named(on_pool),
        ),
        _about(
            "draws-by-seed",
            "{}: every seed has a support set of its own, so the deviation is one over seeds and "
            "supports.",
            _methods_with_own_draws(shown),
        ),
        _about(
            "own-supports",
            "{}: our support images are drawn by our own rule and differ from those of the paper.",
            _named(drawn) if beside_published else "",
        ),
        _about(
            "listed-supports",
            "{}: our support images are those of the lists that were given (--supports).",
            _named(listed),
        ),
        _about(
            "test-sources",
            "{}: fitted zero-shot on the test splits of the other data sets, as MVFA does "
            '(training.source_split = "test"), not on their pools.',
            _named(result for result in shown if _learns_from_test(result.cell)),
        ),
        _about(
            "excluded",
            "{}: measured without the test images that a list names (--exclude).",
            _named(result for result in shown if result.cell.get("exclude")),
        ),
        _about(
            "unlike-test-images",
            "Not measured on the same test images, so ranks and differences mean little: {}.",
            differing(_test_images(shown)),
        ),
        _about(
            "unlike-sources",
            "Not fitted on the same sources, so ranks and differences mean little: {}.",
            differing(_sources(shown)),
        ),
        _about(
            "without-mask",
            "{}: pixel metrics leave out abnormal images without a mask; others have one.",
            _counted({(r.dataset, r.without_mask): None for r in shown}),
        ),
        _about(
            "fitted-on-test",
            "{}: test images that our detectors were fitted on, byte for byte. Leave them out with "
            "--exclude.",
            _counted({(r.dataset, r.fitted_on): None for r in shown if r not in on_pool}),
        ),
        _about(
            "fitted-on-pool",
            "{}: images that were measured are copies, byte for byte, of those that our detectors "
            "were fitted on.",
            _counted({(r.dataset, r.fitted_on): None for r in on_pool}),
        ),
    ]
    return tuple(note for note in notes if note)


def _paper_name(dataset: str) -> str:
    name = dataset.removesuffix("_AD")
    return PAPER_NAMES.get(name, name)


def _about(key: str, text: str, what: str) -> Note | None:
    return Note(key, text.format(what)) if what else None


def _named(results: Iterable[Shown]) -> str:
    return ", ".join(dict.fromkeys(result.method for result in results))


def _counted(counts: Iterable[tuple[str, int]]) -> str:
    """Data sets and how many of their images something is said of."""
    return ", ".join(f"{_paper_name(dataset)} ({count})" for dataset, count in counts if count)


def _settings(shown: Sequence[Shown], variants: bool) -> str:
    """Encoder, input size, preset and changes to it, and whose they are where there are several."""
    changes = [changed_settings(result.cell) for result in shown]
    if variants and changes:
        shared = [item for item in changes[0].items() if all(item in c.items() for c in changes)]
        changes = [dict(shared)] * len(shown)
    kinds: dict[str, list[Shown]] = {}
    for result, changed in zip(shown, changes, strict=True):
        own = ", ".join(f"{key} = {value}" for key, value in changed.items())
        settings = result.cell["settings"]
        encoder = settings["encoder"]
        random = " with random weights" if encoder.get("random_weights") else ""
        kind = f"encoder {encoder_name(settings)}{random} at {encoder['input_px']} px, "
        kind += f"preset {settings['preset']}" + (f" with {own}" if own else "")
        kinds.setdefault(kind, []).append(result)
    if len(kinds) == 1:
        return next(iter(kinds))
    return "; ".join(f"{_named(own)}: {kind}" for kind, own in kinds.items())


def encoder_name(settings: Mapping[str, Any]) -> str:
    """Name what a method looked with, by its settings: their encoder, or a backbone of its own."""
    encoder = settings["encoder"]
    name = str(encoder["name"])
    peer = all_methods().get(settings.get("method", "recap"))
    # It takes the place of our transformers; a network of its own kind can be named in settings.
    if peer and peer.backbone and (find(name) or encoder.get("random_weights")):
        return peer.backbone
    # The folder of an encoder on this machine says nothing to a reader elsewhere.
    return Path(name).name if Path(name).is_absolute() else name


def _methods_with_own_draws(shown: Sequence[Shown]) -> str:
    groups: dict[tuple[str, str, int], list[Shown]] = {}
    for result in shown:
        place = (result.method, result.dataset, result.cell["shots"])
        groups.setdefault(place, []).append(result)
    return _named(
        own[0] for own in groups.values() if draws_by_seed([(r.seed, r.cell) for r in own])
    )


def _test_images(shown: Iterable[Shown]) -> Iterator[tuple[str, str, str]]:
    """List where and by what how many images were measured; each draw leaves others of a pool."""
    for result in shown:
        if result.counts and measured_on(result.cell) == "test":
            shots = result.cell["shots"]
            place = f"{_paper_name(result.dataset)} {f'K = {shots}' if shots else 'zero-shot'}"
            yield place, result.method, "{} abnormal and {} normal".format(*result.counts)


def _sources(shown: Iterable[Shown]) -> Iterator[tuple[str, str, str]]:
    """List where and by what was learned from which sources; older results do not tell."""
    for result in shown:
        sources = result.cell.get("sources")
        if sources:
            files = ", ".join(f"{name} [{digest}]" for name, digest in sources.items())
            yield _paper_name(result.dataset), result.method, files


def _learns_from_test(cell: Mapping[str, Any]) -> bool:
    training = cell["settings"].get("training", {})  # other methods always take the pools
    return cell["shots"] == 0 and training.get("source_split") == "test"


def differing(results: Iterable[tuple[str, str, str]]) -> str:
    """From each result's place, method and what it is of: the places where that is not one thing.

    >>> differing([("Brain", "a", "4 images"), ("Brain", "b", "3 images"), ("Chest", "a", "2")])
    'Brain (a on 4 images; b on 3 images)'
    """
    places: dict[str, dict[str, list[str]]] = {}
    for place, method, what in results:
        places.setdefault(place, {}).setdefault(what, []).append(method)
    said = []
    for place, kinds in places.items():
        each = [f"{', '.join(dict.fromkeys(own))} on {what}" for what, own in kinds.items()]
        said += [f"{place} ({'; '.join(each)})"] if len(each) > 1 else []
    return ", ".join(said)


_SAID_ELSEWHERE = {"seed", "preset", "method"} | {
    f"encoder.{key}" for key in ("name", "input_px", "random_weights")
}


def changed_settings(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Find what --set or --config changed, under the names that users write.

    A setting that is newer than the cell is as it always was.
    """
    settings = cell["settings"]
    preset = _of_preset(cell["method"], settings["preset"])
    return {
        key: value
        for key, value in flat_settings(settings)
        if key in preset and key not in _SAID_ELSEWHERE and preset[key] != value
    }


@cache
def _of_preset(method: str, preset: str) -> dict[str, Any]:
    try:
        settings = resolve_settings(preset, method=method)
    except SettingsError:  # of a version with other methods or presets
        return {}
    return dict(flat_settings(settings.model_dump(mode="json")))
