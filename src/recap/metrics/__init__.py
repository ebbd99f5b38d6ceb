"""Evaluation metrics as pure functions, their streaming twins and their uncertainty."""

from recap.metrics.bootstrap import Comparison, Interval, bootstrap_ci, paired_bootstrap
from recap.metrics.functional import (
    auroc,
    average_precision,
    expected_calibration_error,
    f1_max,
    fpr_at_tpr,
    sensitivity_at_specificity,
)
from recap.metrics.regions import aupro, pro
from recap.metrics.streaming import ImageMetrics, PixelMetrics

__all__ = [
    "Comparison",
    "ImageMetrics",
    "Interval",
    "PixelMetrics",
    "aupro",
    "auroc",
    "average_precision",
    "bootstrap_ci",
    "expected_calibration_error",
    "f1_max",
    "fpr_at_tpr",
    "paired_bootstrap",
    "pro",
    "sensitivity_at_specificity",
]
