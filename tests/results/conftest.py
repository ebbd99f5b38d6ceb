"""Detectors of several kinds, fitted once."""

from fitted_detectors import (  # noqa: F401
    detectors,
    domains,
    few_shot,
    pictures,
    tiny_settings,
)
from quick_encoder import encoder_read_once  # noqa: F401
