"""Pictures and pages to look at."""

from recap.report.overlay import (
    as_picture,
    case_overlay,
    colourise,
    encode_png,
    legend,
    outline,
    overlay,
    save_png,
)

__all__ = [
    "as_picture",
    "case_overlay",
    "colourise",
    "encode_png",
    "legend",
    "outline",
    "overlay",
    "save_png",
]
