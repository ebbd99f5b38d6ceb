"""The benchmark's domains made from their raw public sources."""

from recap.data.prepare.plan import Item, Note, Output, Plan, PrepareOptions, Probe, Source
from recap.data.prepare.run import Summary, find_source, listed_names, prepare

__all__ = [
    "Item",
    "Note",
    "Output",
    "Plan",
    "PrepareOptions",
    "Probe",
    "Source",
    "Summary",
    "find_source",
    "listed_names",
    "prepare",
]
