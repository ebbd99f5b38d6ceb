"""Images that no reader takes, such as GIF: told from other files, so that none is passed over.

A folder of images may hold notes and tables, which nobody misses in the results. An image that
is left out without a word would be missed, so these become cases that say why they failed.
"""

from pathlib import Path

SUFFIXES = (
    *(".gif", ".jp2", ".j2k", ".jpx", ".jxl", ".heic", ".heif", ".avif"),
    *(".pgm", ".ppm", ".pnm", ".tga", ".psd", ".exr", ".dng", ".mha", ".mhd"),
)
_BEGINNINGS = (
    b"GIF87a",
    b"GIF89a",
    b"\x00\x00\x00\x0cjP  \r\n\x87\n",  # JPEG 2000, and below it bare
    b"\xff\x4f\xff\x51",
    b"\x00\x00\x00\x0cJXL ",
    b"8BPS",
)
_BRANDS = (b"heic", b"heix", b"mif1", b"avif")


def is_unread_image(path: Path) -> bool:
    """Whether a file that no reader knows is an image all the same, by its name or content."""
    if path.name.lower().endswith(SUFFIXES):
        return True
    try:
        with path.open("rb") as stream:
            head = stream.read(12)
    except OSError:
        return False
    return head.startswith(_BEGINNINGS) or (head[4:8] == b"ftyp" and head[8:12] in _BRANDS)
