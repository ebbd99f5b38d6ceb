"""`recap.fit`: the one call that makes a detector."""

from pathlib import Path
from typing import Any

from recap.config import DEFAULT_PRESET, Settings, resolve_settings
from recap.progress import Progress, silent
from recap.scoring.detector import Detector


def fit(
    normal: Any,
    abnormal: Any = None,
    masks: Any = None,
    *,
    preset: str = DEFAULT_PRESET,
    seed: int = 0,
    settings: Settings | None = None,
    work_dir: str | Path | None = None,
    device: str = "auto",
    progress: Progress = silent,
) -> Detector:
    """Fit a detector on a few images of your own.

    Args:
        normal: healthy images: a folder, a list of files, or a list of arrays.
        abnormal: images with lesions, likewise. Without any, the detector is a memory of the
            normal images, whose tokens made-up lesions adapt (`training.made_up_lesions`).
        masks: lesion masks: a folder with files named like the abnormal images, or, with arrays,
            a list with one mask or None per abnormal image. Optional.
        preset: `recap`, `fast` (the published model, side adapters) or `paper` (the published
            recipe).
        settings: everything else; replaces `preset` and `seed`.
        work_dir: a folder for unfinished work; an interrupted fit goes on from there.
    """
    from recap.training.fewshot import fit_few_shot
    from recap.training.support import gather_support

    settings = settings or resolve_settings(preset, seed=seed)
    return fit_few_shot(
        gather_support(normal, abnormal, masks, settings.reading),
        settings,
        work_dir=Path(work_dir) if work_dir is not None else None,
        device=device,
        progress=progress,
    )
