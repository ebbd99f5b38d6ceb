"""Evaluation metrics as pure functions."""

from recap.metrics.functional import auroc, average_precision, f1_max

__all__ = ["auroc", "average_precision", "f1_max"]
