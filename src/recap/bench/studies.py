"""Ablations and sweeps: variants of one setting, run on the same data, shots and seeds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recap.bench.cells import Cell, MeasuredOn, plan_cells, with_changes, with_seed, with_sources
from recap.bench.results import register
from recap.bench.run import Watcher, run_cells, silent
from recap.bench.supports import Lists
from recap.data import Domain
from recap.encoders.weights import MissingWeightsError, locate
from recap.errors import InputError, SettingsError
from recap.methods.recap.settings import RecapSettings

ENCODERS = ("clip-vit-b16", "clip-vit-l14-336", "dinov2-base", "dinov2-large", "dinov2-small")
"""Those of the paper's table that have a name here, and the default one."""

# η: the values that the paper names, and one below. top-k and λ: around the ranges that it names.
VALUES: dict[str, tuple[str, ...]] = {
    "backbones": ENCODERS,
    "sweep-eta": ("0.01", "0.025", "0.05", "0.1", "0.2"),
    "sweep-topk": ("0.01", "0.05", "0.1", "0.2", "0.5"),
    "sweep-lambda": ("0", "0.25", "0.5", "0.75", "1"),
    "sweep-delta-sep": ("-0.5:0.1", "0:0.1", "0.5:0.1", "-0.5:1", "0:1", "0.5:1"),
}
NUMBERS = {
    "sweep-eta": ("model", "eta"),
    "sweep-topk": ("model", "top_k"),
    "sweep-lambda": ("memory", "weight"),
}
"""Sweeps over one number: the section and key of its setting."""


@dataclass(frozen=True)
class Study:
    """A comparison: the cells of each variant, and what they have in common."""

    name: str
    """Also that of the experiment under which its cells are kept."""
    variants: dict[str, list[Cell]]
    base: dict[str, Any]

    @property
    def cells(self) -> list[Cell]:
        """All cells; one seed of every variant before the next, the long zero-shot fits last.

        Variants may come to the same settings; a cell that several of them have is one.
        """
        named = {cell.name: cell for variant in self.variants.values() for cell in variant}
        cells = list(named.values())
        return sorted(cells, key=lambda cell: (cell.shots or 10**6, cell.settings.seed))


def plan_study(
    name: str,
    settings: RecapSettings,
    datasets: Sequence[str],
    shots: Sequence[int],
    seeds: Sequence[int],
    *,
    values: Sequence[str] | None = None,
    draw_by_seed: bool = False,
    exclude: str = "",
    on: MeasuredOn = "test",
    lists: Lists | None = None,
) -> Study:
    """The cells of an ablation or a sweep, over its own values or others."""
    variants = {
        label: plan_cells({"recap": own}, datasets, shots, seeds, draw_by_seed, exclude, on, lists)
        for label, own in variants_of(name, settings, values).items()
    }
    if not all(variants.values()):
        raise InputError(
            f"There is nothing to run on {', '.join(datasets)}. Give --shots of 1 or more."
        )
    common = with_seed(settings, 0).model_dump(mode="json")
    base = {"settings": common, "draw_by_seed": draw_by_seed, "exclude": exclude, "on": on}
    base["supports"] = "listed" if lists else "drawn"
    return Study(name, variants, base)


def variants_of(
    name: str, settings: RecapSettings, values: Sequence[str] | None = None
) -> dict[str, RecapSettings]:
    """The settings of each variant; the one that the others are compared with is among them."""
    if name == "components":
        return {
            "recap": settings,
            "no_memory": with_changes(settings, "memory", weight=0.0),
            "no_conditioning": with_changes(settings, "model", conditioning="static"),
            "no_layer_fusion": with_changes(settings, "model", layer_fusion="uniform"),
        }
    if name == "recipe":
        return _recipe(settings)
    if name == "conditioning":
        kinds = ("gated", "bounded", "unbounded", "static", "tokens")
        return {kind: with_changes(settings, "model", conditioning=kind) for kind in kinds}
    given = [value.strip() for value in (VALUES[name] if values is None else values)]
    make = _encoder if name == "backbones" else _pair if name == "sweep-delta-sep" else _number
    found = dict(make(name, settings, value) for value in given)
    return {reference_of(name, settings): settings, **found}


def reference_of(name: str, settings: RecapSettings) -> str:
    """The label of the variant that all others of a study are compared with."""
    if name in NUMBERS:
        section, key = NUMBERS[name]
        return f"{getattr(getattr(settings, section), key):g}"
    training = settings.training
    return {
        "components": "recap",
        "recipe": "all of it",
        "conditioning": "gated",
        "backbones": settings.encoder.name,
        "sweep-delta-sep": _pair_label(training.separation_margin, training.separation_weight),
    }[name]


def value_of(name: str, label: str) -> float | None:
    """The number that a variant of a sweep over one number stands for."""
    return float(label) if name in NUMBERS else None


def present_encoders(names: Sequence[str], settings: RecapSettings) -> tuple[list[str], list[str]]:
    """The encoders whose weights are here, and why the others are skipped."""
    if settings.encoder.random_weights:
        return list(names), []
    present, skipped = [], []
    for name in names:
        try:
            locate(name)
        except MissingWeightsError as error:
            skipped.append(f"{name} is skipped. {error}")
        else:
            present.append(name)
    return present, skipped


def run_study(
    study: Study,
    domains: Sequence[Domain],
    out: Path,
    *,
    watch: Watcher = silent,
    **options: Any,
) -> dict[str, str]:
    """Run what is missing (options as for `run_cells`); returns the cells that failed and why.

    Cells that differ in how they score alone share one fit.
    """
    variants = {label: with_sources(own, domains) for label, own in study.variants.items()}
    study = replace(study, variants=variants)
    register(out, study.name, study.variants, study.base)
    cells = study.cells
    shared = len({cell.fit_name for cell in cells}) < len(cells)
    return run_cells(cells, domains, out, watch=watch, share_heads=shared, **options)


def _recipe(settings: RecapSettings) -> dict[str, RecapSettings]:
    """The settings, and each that is not at its default put back there: alone, then all of them."""
    plain = with_seed(RecapSettings(), settings.seed)
    variants = {"all of it": settings}
    together = settings
    for section in ("model", "memory", "training"):
        own, default = getattr(settings, section), getattr(plain, section)
        for key in type(own).model_fields:
            value = getattr(default, key)
            if getattr(own, key) != value:
                together = with_changes(together, section, **{key: value})
                label = f"{section}.{key} = {'none' if value is None else value}"
                variants[label] = with_changes(settings, section, **{key: value})
    if len(variants) == 1:
        raise SettingsError(
            "A recipe is what a preset changes, and these settings change nothing. "
            "Try --preset recap."
        )
    # `fast` is the preset that changes nothing: its cells are these.
    return {**variants, "none of it": together.model_copy(update={"preset": "fast"})}


def _number(name: str, settings: RecapSettings, text: str) -> tuple[str, RecapSettings]:
    section, key = NUMBERS[name]
    value = _parse(text, "numbers such as 0.05,0.1")
    return f"{value:g}", with_changes(settings, section, **{key: value})


def _pair(name: str, settings: RecapSettings, text: str) -> tuple[str, RecapSettings]:
    form = "pairs of margin and weight such as 0:0.1,-0.5:1"
    parts = text.split(":")
    if len(parts) != 2:
        raise SettingsError(f"--values: '{text}' is not a value. Write {form}.")
    margin, weight = (_parse(part, form) for part in parts)
    changed = with_changes(settings, "training", separation_margin=margin, separation_weight=weight)
    return _pair_label(margin, weight), changed


def _pair_label(margin: float, weight: float) -> str:
    return f"δ = {margin:g}, λ_sep = {weight:g}"


def _encoder(name: str, settings: RecapSettings, encoder: str) -> tuple[str, RecapSettings]:
    return encoder, with_changes(settings, "encoder", name=encoder)


def _parse(text: str, form: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SettingsError(f"--values: '{text}' is not a value. Write {form}.") from None
