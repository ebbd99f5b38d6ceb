"""Language-free zero- and few-shot anomaly detection for medical images.

>>> import recap                                                          # doctest: +SKIP
>>> detector = recap.fit(normal="normal/", abnormal="abnormal/", masks="masks/")  # doctest: +SKIP
>>> prediction = detector.score("case.png")                               # doctest: +SKIP
>>> prediction.score, prediction.map.shape                                # doctest: +SKIP
>>> detector.save("brain.recap")                                          # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from recap.errors import RecapError
from recap.threads import wait_passively

if TYPE_CHECKING:
    from recap.api import calibrate, evaluate, explain, export, score_folder
    from recap.config import Settings
    from recap.io import Case, read_image
    from recap.methods.registry import resolve_settings
    from recap.runtime.choose import load
    from recap.scoring.detector import Detector
    from recap.scoring.fit import fit
    from recap.types import Image, Prediction

    __version__: str

__all__ = [
    "Case",
    "Detector",
    "Image",
    "Prediction",
    "RecapError",
    "Settings",
    "__version__",
    "calibrate",
    "evaluate",
    "explain",
    "export",
    "fit",
    "load",
    "read_image",
    "resolve_settings",
    "score_folder",
]

# Loaded at first use, so that `import recap` and `recap --help` wait for neither torch nor numpy.
_LAZY = {
    "Case": "recap.io",
    "Detector": "recap.scoring.detector",
    "Image": "recap.types",
    "Prediction": "recap.types",
    "Settings": "recap.config",
    "calibrate": "recap.api",
    "evaluate": "recap.api",
    "explain": "recap.api",
    "export": "recap.api",
    "fit": "recap.scoring.fit",
    "load": "recap.runtime.choose",
    "read_image": "recap.io",
    "resolve_settings": "recap.methods.registry",
    "score_folder": "recap.api",
}


wait_passively()  # every command, worker and program passes here, before any of this loads torch


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("recap-ad")
    if name not in _LAZY:
        raise AttributeError(f"module 'recap' has no attribute '{name}'")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
