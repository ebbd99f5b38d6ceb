"""Support sets of a benchmark that are read from lists, as published ones are, not drawn."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from recap.data import Domain, Support, read_support
from recap.data.exclusions import relative_path
from recap.errors import InputError, SettingsError
from recap.types import Sample


@dataclass(frozen=True)
class SupportList:
    """The files of a list by their paths from the domain's folder: what was listed, anywhere."""

    normal: tuple[str, ...]
    abnormal: tuple[str, ...]

    def find(self, domain: Domain) -> Support:
        """The listed images of the pool."""
        pool = {relative_path(sample.path, domain): sample for sample in domain.pool()}
        missing = [path for path in (*self.normal, *self.abnormal) if path not in pool]
        if missing:
            raise InputError(
                f"{domain.root}: '{missing[0]}' of the support list is no longer in the pool. "
                "Restore it and run again."
            )
        return Support(
            normal=tuple(pool[path] for path in self.normal),
            abnormal=tuple(pool[path] for path in self.abnormal),
        )


Lists = dict[tuple[str, int], SupportList]
"""By data set and number of shots."""


def read_lists(
    folder: Path, domains: Iterable[Domain], datasets: Sequence[str], shots: Sequence[int]
) -> Lists:
    """Read FOLDER/NAME/K-shot.txt for every data set and number of shots; all must be there."""
    counts = [count for count in shots if count]
    if not counts:
        raise SettingsError(f"--supports {folder}: zero-shot has no supports. Leave it out.")
    chosen = [domain for domain in domains if domain.name in datasets]
    return {
        (domain.name, count): _read(folder / domain.name / f"{count}-shot.txt", domain, count)
        for domain in chosen
        for count in counts
    }


def _read(file: Path, domain: Domain, shots: int) -> SupportList:
    if not file.is_file():
        raise InputError(
            f"{file}: there is no such support list. --supports needs DIR/NAME/K-shot.txt for "
            "every data set and number of shots; leave out --datasets or --shots that have none."
        )
    support = read_support(domain, file)
    found = (len(support.normal), len(support.abnormal))
    if found != (shots, shots):
        raise InputError(
            f"{file}: lists {found[0]} normal and {found[1]} abnormal images, not {shots} of each. "
            "Name the list after the number of images that it has of each class."
        )

    def paths(samples: Iterable[Sample]) -> tuple[str, ...]:
        return tuple(relative_path(sample.path, domain) for sample in samples)

    return SupportList(paths(support.normal), paths(support.abnormal))
