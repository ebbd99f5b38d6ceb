"""Folders, the benchmark's layout, support sets and made-up data."""

from recap.data.benchmark import Domain, find_domains, read_domain
from recap.data.folder import folder_samples, list_images
from recap.data.phantom import write_phantoms
from recap.data.supports import Support, draw_support, read_support

__all__ = [
    "Domain",
    "Support",
    "draw_support",
    "find_domains",
    "folder_samples",
    "list_images",
    "read_domain",
    "read_support",
    "write_phantoms",
]
