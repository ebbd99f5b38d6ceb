"""How the cores are shared out: all for one image, or one for each of several."""

from dataclasses import dataclass

import torch

from recap.errors import SettingsError


@dataclass(frozen=True)
class Cores:
    """What a runtime may use."""

    threads: int | None = None
    """Of all images together; None is what the library takes by itself."""
    lanes: int = 1
    """Images that run side by side, each on one core, if there is more than one."""

    @property
    def per_image(self) -> int | None:
        """Threads that one image may use."""
        return self.threads if self.lanes == 1 else 1

    def describe(self) -> dict[str, int | str]:
        """What is used, for the manifest."""
        return {"threads": self.threads or "all", "images_at_a_time": self.lanes}


def share_cores(threads: int | None, side_by_side: bool) -> Cores:
    """All cores, or as many as given, for one image or for as many images."""
    if threads is not None and threads < 1:
        raise SettingsError(f"threads = {threads}: give 1 or more.")
    if not side_by_side:
        return Cores(threads)
    lanes = threads or torch.get_num_threads()
    return Cores(lanes, lanes)
