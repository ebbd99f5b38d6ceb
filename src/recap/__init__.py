"""Language-free zero- and few-shot anomaly detection for medical images.

>>> import recap                                                          # doctest: +SKIP
>>> detector = recap.fit(normal="normal/", abnormal="abnormal/", masks="masks/")  # doctest: +SKIP
>>> prediction = detector.score("case.png")                               # doctest: +SKIP
>>> prediction.score, prediction.map.shape                                # doctest: +SKIP
>>> detector.save("brain.recap")                                          # doctest: +SKIP
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from recap.errors import RecapError
from recap.types import Image, Prediction

if TYPE_CHECKING:
    from recap.config import Settings, resolve_settings
    from recap.io import read_image
    from recap.model.build import build_model
    from recap.scoring.detector import Detector, load
    from recap.training.fit import fit

__version__ = version("recap-ad")

__all__ = [
    "Detector",
    "Image",
    "Prediction",
    "RecapError",
    "Settings",
    "__version__",
    "build_model",
    "fit",
    "load",
    "read_image",
    "resolve_settings",
]

# Loaded at first use, so that `import recap` does not wait for torch.
_LAZY = {
    "Detector": "recap.scoring.detector",
    "Settings": "recap.config",
    "build_model": "recap.model.build",
    "fit": "recap.training.fit",
    "load": "recap.scoring.detector",
    "read_image": "recap.io",
    "resolve_settings": "recap.config",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'recap' has no attribute '{name}'")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
