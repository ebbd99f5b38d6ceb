"""`recap.fit`: the one call that makes a detector."""

import shutil
from pathlib import Path

from recap.config import Settings, resolve_settings
from recap.errors import InputError, SettingsError
from recap.progress import Progress, silent
from recap.scoring.detector import Detector
from recap.training.checkpoint import FINGERPRINT
from recap.training.devices import is_main_process
from recap.training.support import Masks, Pictures, gather_support


def fit(
    normal: Pictures,
    abnormal: Pictures | None = None,
    masks: Masks | None = None,
    *,
    preset: str | None = None,
    seed: int | None = None,
    settings: Settings | None = None,
    work_dir: str | Path | None = None,
    device: str = "auto",
    progress: Progress = silent,
) -> Detector:
    """Fit a detector on a few images of your own.

    Args:
        normal: healthy images: a folder, a list of files, or a list of arrays (see
            `Detector.score` for what an array may be).
        abnormal: images with lesions, likewise. Without any, the detector is a memory of the
            normal images, whose tokens made-up lesions adapt (`training.made_up_lesions`).
        masks: lesion masks: a folder with files named like the abnormal images, or a list with
            one mask (or None) for each abnormal image: files with files, arrays with arrays.
        preset: `recap` (the default), `fast` (the published model, side adapters) or `paper` (the
            published recipe).
        seed: of every generator; 0 by default.
        settings: all settings, as `recap.resolve_settings` makes them, preset and seed included.
        work_dir: a folder of its own for unfinished work; an interrupted fit goes on from there,
            a finished one removes it.
        device: `auto`, `cpu` or `cuda`.
        progress: called with stage, done, total and detail at every step; `print` will do.
    """
    from recap.training.fewshot import fit_few_shot

    if settings is None:
        settings = resolve_settings(preset, seed=seed or 0)
    elif preset is not None or seed is not None:
        given = f"preset={preset!r}" if preset is not None else f"seed={seed!r}"
        raise SettingsError(
            f"{given} beside settings=, which have a preset and a seed: one would be ignored. Put "
            "it into the settings: recap.resolve_settings(preset, seed=…)."
        )
    support = gather_support(normal, abnormal, masks, settings.reading)
    work = None if work_dir is None else _own_folder(Path(work_dir))
    detector = fit_few_shot(support, settings, work_dir=work, device=device, progress=progress)
    if work is not None and is_main_process():
        shutil.rmtree(work, ignore_errors=True)
    return detector


def _own_folder(work: Path) -> Path:
    """Refuse a folder with other things in it: it is removed in the end."""
    if work.is_dir() and any(work.iterdir()) and not (work / FINGERPRINT).is_file():
        raise InputError(
            f"work_dir {work} holds other files than an unfinished fit, and would be removed with "
            f"them. Give a folder of its own, such as {work / 'unfinished'}."
        )
    return work
