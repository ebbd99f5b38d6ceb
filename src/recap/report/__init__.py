"""Pictures and pages to look at."""

from recap.report.case_overlay import case_overlay
from recap.report.html import Report, ReportRow, write_report
from recap.report.overlay import (
    as_picture,
    colourise,
    encode_png,
    legend,
    outline,
    overlay,
    save_png,
)

__all__ = [
    "Report",
    "ReportRow",
    "as_picture",
    "case_overlay",
    "colourise",
    "encode_png",
    "legend",
    "outline",
    "overlay",
    "save_png",
    "write_report",
]
