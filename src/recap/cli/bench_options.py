"""Options and steps that the commands of `recap bench` share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from recap.cli.options import method_settings
from recap.cli.terminal import printable, unmatched_exclusions
from recap.errors import InputError, SettingsError

if TYPE_CHECKING:
    from recap.bench.cells import MeasuredOn
    from recap.bench.supports import Lists
    from recap.config import Settings
    from recap.data import Domain
    from recap.data.supports import Exclusions

Data = Annotated[Path, typer.Option(help="A folder of data sets, or one of them.")]
Out = Annotated[Path, typer.Option(help="Folder for the results; finished cells are skipped.")]
Shots = Annotated[str, typer.Option(help="0 is zero-shot, leave-one-out.")]
Seeds = Annotated[str, typer.Option(help="E.g. 0-4.")]
Datasets = Annotated[str, typer.Option(help="Only these, with commas.")]
EncoderName = Annotated[str | None, typer.Option(help="A named encoder, folder or hub id.")]
DrawBySeed = Annotated[
    bool, typer.Option("--draw-by-seed", help="Another support set for every seed.")
]
Supports = Annotated[
    Path | None,
    typer.Option(help="Support lists DIR/NAME/K-shot.txt, such as published ones; none is drawn."),
]
Exclude = Annotated[
    Path | None, typer.Option(help="Test images to leave out (`recap data audit`).")
]
On = Annotated[
    str,
    typer.Option(
        help="test; or pool: what the supports leave of valid/, to choose settings by without "
        "reading test/."
    ),
]
Jobs = Annotated[int, typer.Option(min=1, help="Cells at once, each in a process.")]


@dataclass(frozen=True)
class Grid:
    """The sum of the options of a run: data, shots and seeds, and how they are measured."""

    domains: "list[Domain]"
    """All of the folder: zero-shot cells learn from those that are not asked for too."""
    datasets: list[str]
    shots: list[int]
    seeds: list[int]
    draw_by_seed: bool
    left_out: "Exclusions | None"
    on: "MeasuredOn"
    lists: "Lists | None"

    @property
    def exclude(self) -> str:
        """The sha256 of the exclusion list, if there is one."""
        return self.left_out.sha256 if self.left_out else ""


def read_grid(
    data: Path,
    shots: str,
    seeds: str,
    datasets: str,
    draw_by_seed: bool,
    supports: Path | None,
    exclude: Path | None,
    on: str,
) -> Grid:
    """Check the options that all runs share, and read the files that they name."""
    from recap.bench.cells import parse_numbers

    where = measured_on(on, exclude)
    domains, chosen = _choose_domains(data, datasets)
    left_out = _left_out(exclude, domains)
    counts = _possible_shots(shots, domains)
    numbers = parse_numbers(seeds)
    lists = _support_lists(supports, draw_by_seed, domains, chosen, counts)
    return Grid(domains, chosen, counts, numbers, draw_by_seed, left_out, where, lists)


def _choose_domains(data: Path, datasets: str) -> "tuple[list[Domain], list[str]]":
    """All data sets of a folder, and the names of those that were asked for."""
    from recap.data import find_domains

    domains = find_domains(data)
    names = [domain.name for domain in domains]
    chosen = list(dict.fromkeys(datasets.split(","))) if datasets else names
    unknown = [name for name in chosen if name not in names]
    if unknown:
        raise InputError(f"{data}: no data set '{unknown[0]}'. Found: {', '.join(names)}.")
    return domains, chosen


def _possible_shots(shots: str, domains: Sequence["Domain"]) -> list[int]:
    """The shots that were asked for; zero-shot is left out, and that is said, without a source."""
    from recap.bench.cells import parse_numbers

    wanted = parse_numbers(shots)
    if 0 in wanted and len(domains) < 2:
        typer.echo(
            f"Zero-shot (0) is left out: {domains[0].name} is the only data set, and it learns "
            "from others.",
            err=True,
        )
        wanted = [count for count in wanted if count != 0]
    return wanted


def _support_lists(
    supports: Path | None,
    draw_by_seed: bool,
    domains: "Sequence[Domain]",
    chosen: Sequence[str],
    shots: Sequence[int],
) -> "Lists | None":
    """The lists of --supports, all of them; none without it."""
    from recap.bench.supports import read_lists

    if supports is None:
        return None
    if draw_by_seed:
        raise SettingsError(
            "--supports has one list for all seeds, and --draw-by-seed draws one for each. Leave "
            "one of the two out."
        )
    return read_lists(supports, domains, chosen, shots)


def _left_out(exclude: Path | None, domains: "Sequence[Domain]") -> "Exclusions | None":
    """The list of --exclude; entries that are of no data set here are told."""
    from recap.data.supports import read_exclusions

    if exclude is None:
        return None
    found = read_exclusions(exclude)
    unmatched = found.unmatched(domains[0])
    if unmatched:
        told = unmatched_exclusions(exclude.name, unmatched, domains[0].name)
        typer.echo(f"Warning: {printable(told)}", err=True)
    return found


def measured_on(on: str, exclude: Path | None) -> "MeasuredOn":
    """Check --on."""
    from recap.bench.cells import MeasuredOn

    if on not in get_args(MeasuredOn):
        raise SettingsError(f"--on {on}: use one of {', '.join(get_args(MeasuredOn))}.")
    if on == "pool" and exclude is not None:
        raise SettingsError("--exclude names test images; it has no part in --on pool.")
    return on  # type: ignore[return-value]


def grid_settings(
    methods: str,
    preset: str | None,
    peer_preset: str,
    config: Path | None,
    overrides: list[str] | None,
    encoder: str | None,
) -> "dict[str, Settings]":
    """The settings of every method of a grid.

    A TOML file is for our own methods. So is --set, but for encoder.* and reading.*, which all
    methods take, and options.*, which is for the others.
    """
    from recap.methods.registry import METHODS, find_method

    names = list(METHODS) if methods == "all" else methods.split(",")
    ours = [name for name in names if find_method(name).is_ours]
    refuse_seed(config, overrides)
    given = overrides or []
    shared = [text for text in given if text.startswith(("encoder.", "reading."))]
    theirs = [*shared, *(text for text in given if text.startswith("options."))]
    own = [text for text in given if not text.startswith("options.")]
    if not ours:
        only = {"--preset": preset, "--config": config}
        _refuse_unused(only, [text for text in own if text not in shared], "our own methods")
    if len(ours) == len(names):
        only = {"--peer-preset official": "official" if peer_preset == "official" else None}
        _refuse_unused(only, [text for text in theirs if text not in shared], "the other methods")
    chosen = {"name": encoder}
    found = {
        name: method_settings(name, preset, config, own, encoder=chosen)
        if name in ours
        else method_settings(name, peer_preset, None, theirs, encoder=chosen)
        for name in names
    }
    return _with_text_towers(found, left_out=methods == "all")


def _with_text_towers(settings: "dict[str, Settings]", left_out: bool) -> "dict[str, Settings]":
    """Without the methods whose encoder has no text tower, though they need one.

    All their cells would fail. They are left out, and that is said; or else refused.
    """
    from recap.methods.registry import find_method

    texts = [name for name in settings if find_method(name).uses_text]
    if not texts:
        return settings
    from recap.encoders.text import has_text_tower

    lacking = [name for name in texts if not has_text_tower(settings[name].encoder)]
    if not lacking:
        return settings
    encoder = settings[lacking[0]].encoder.name
    why = f"text is a part of them, and {encoder} has no text tower. Give an --encoder with one, "
    why += "such as clip-vit-b16"
    if not left_out:
        raise SettingsError(f"--methods {','.join(lacking)}: {why}, or leave them out.")
    typer.echo(f"Left out: {', '.join(lacking)}. {why[0].upper()}{why[1:]}.", err=True)
    return {name: own for name, own in settings.items() if name not in lacking}


def refuse_seed(config: Path | None, overrides: Sequence[str] | None) -> None:
    """A seed among the settings would be replaced by those of the grid, unseen."""
    from recap.config import parse_override, read_toml

    # A file may spell out all settings; the default does no harm.
    file = (read_toml(config) if config else {}).get("seed", 0)
    wrong = [f"--config {config}: seed = {file!r}"] if file != 0 else []
    wrong += [f"--set {text}" for text in overrides or () if "seed" in parse_override(text)]
    if wrong:
        raise SettingsError(
            f"{wrong[0]} would do nothing. Seeds of a grid come from --seeds; leave it out."
        )


def _refuse_unused(options: Mapping[str, object], overrides: Sequence[str], whose: str) -> None:
    """Options that no method of the grid would take are a mistake to be told of."""
    given = [name for name, value in options.items() if value is not None]
    for option in (*given, *(f"--set {text}" for text in overrides)):
        raise SettingsError(
            f"{option} is for {whose}, and --methods has none of them. Leave it out."
        )


def tell_failures(failed: dict[str, str]) -> None:
    """Name the cells that failed, and end with exit code 1 if there are any."""
    for name, reason in failed.items():
        typer.echo(printable(f"  {name}: {reason}"), err=True)
    if failed:
        raise typer.Exit(1)
