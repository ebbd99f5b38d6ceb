"""What logs say of errors that nobody expected."""

import logging
import traceback
from pathlib import Path

_FRAMES = 6


def log_failure(log: logging.Logger, error: BaseException, what: str) -> None:
    """Log an error's kind and where it rose. Its text may name a patient."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    places = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames))
    log.error("%s failed: %s at %s", what, type(error).__name__, places)
