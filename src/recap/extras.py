"""Optional dependencies are imported through one helper that names the extra to install."""

from importlib import import_module
from typing import Any

from recap.errors import RecapError


def require(module: str, extra: str) -> Any:
    """Import an optional module, or say which extra of recap-ad brings it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise RecapError(
            f"This needs the Python package '{module.split('.')[0]}', which is not installed. "
            f"Install it with: pip install 'recap-ad[{extra}]'",
            code="extra",
        ) from error
