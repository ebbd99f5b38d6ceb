"""What a raw source promises the engine: the contract between `run.py` and one file per source.

A source looks at the raw folder and says what is to be done, without doing it:

    SOURCE = Source(name="brainmri", domain="Brain", describe="…", expected="…", plan=plan)

    def plan(raw: Path, options: PrepareOptions) -> Plan: ...

`plan` lists files and reads small tables only. The work of an `Item` is a `functools.partial` of a
function of the module (it goes to another process) whose arguments tell all about themselves in
their `repr` (numbers, text, paths, tuples, frozen dataclasses; no sets, no arrays); it reads its
inputs and yields the files that it makes, which the engine writes. It is repeated when the inputs,
the function's name or the arguments change. Where the choice depends on what is inside the files,
the plan has `probes` whose work returns small facts, and `choose`, which turns those into the
final plan. The same inputs and options must give the same plan and the same bytes: no random
generator, no time, no folder order.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from recap.errors import InputError

Split = Literal["train", "valid", "test"]


@dataclass(frozen=True)
class Output:
    """One finished file: `path` is relative to the domain's folder, with forward slashes."""

    path: str
    data: bytes


@dataclass(frozen=True)
class Item:
    """A unit of work, such as one patient: made whole or not at all, by one process."""

    key: str
    inputs: tuple[Path, ...]
    work: Callable[[], Iterable[Output]]


@dataclass(frozen=True)
class Probe:
    """A look into one input before the choice; the work returns what JSON can hold."""

    key: str
    inputs: tuple[Path, ...]
    work: Callable[[], Any]


@dataclass(frozen=True)
class Note:
    """An input that is left out, and why."""

    key: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """All that is to be made, or what must be looked at before that can be said.

    With `choose`, the probes run first and `choose` gets their facts by key (a probe that failed
    is missing); its plan takes the place of this one, and the notes of both are kept.
    `skipped` is left out by the rules, `errors` is missing or broken.
    """

    items: tuple[Item, ...] = ()
    skipped: tuple[Note, ...] = ()
    errors: tuple[Note, ...] = ()
    probes: tuple[Probe, ...] = ()
    choose: Callable[[Mapping[str, Any]], "Plan"] | None = None
    caveats: tuple[str, ...] = ()
    """What a user of the result must know, one sentence each, such as patients that are shared."""


@dataclass(frozen=True)
class PrepareOptions:
    """What the user may choose; all of it is recorded in the manifest."""

    patient_split: bool = False
    """Pool, test and train share no patient; otherwise the published rule is followed."""
    train: bool = True
    """Also write `train/good`, the normal training images of the benchmark."""
    limit: int | None = None
    """At most this many patients, volumes or slides of each kind, to try things out."""
    pool_normal: tuple[str, ...] = ()
    """File names that belong into the pool as normal: those of the published support lists."""
    pool_abnormal: tuple[str, ...] = ()
    """The same for abnormal."""
    organ_only: bool = False
    """LiverCT: black outside the annotated liver."""
    masks: bool = False
    """HIS: also write the outlined tumour as masks, which the benchmark does not have."""


@dataclass(frozen=True)
class Source:
    """A raw data set that one domain of the benchmark is made from."""

    name: str
    domain: str
    """The benchmark's name of it: the result goes to `<domain>_AD`."""
    describe: str
    """What it is, where it is to be had and on which terms, in one or two sentences."""
    expected: str
    """The raw folder's tree as text, for help and for errors."""
    plan: Callable[[Path, PrepareOptions], Plan]
    packages: tuple[str, ...] = ()
    """Distributions, beyond numpy and Pillow, whose version may change the bytes."""
    revision: int = 1
    """Raised whenever the rules or the bytes of this source change."""

    def wrong_folder(self, raw: Path, seen: str) -> InputError:
        """The error for a folder that is not this source's."""
        return InputError(
            f"{raw}: {seen}. For '{self.name}' give the folder that looks like this:\n"
            f"{self.expected}\n{self.describe}"
        )
