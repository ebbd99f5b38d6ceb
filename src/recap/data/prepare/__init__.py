"""The benchmark's domains made from their raw public sources."""

from recap.data.prepare.lists import listed_names
from recap.data.prepare.plan import Item, Note, Output, Plan, PrepareOptions, Probe, Source
from recap.data.prepare.run import Summary, prepare
from recap.data.prepare.sources import find_source

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
