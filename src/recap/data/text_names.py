r"""File names as text. Names need not be valid UTF-8, but tables must be.

A byte that is none stands as Python writes it, `\udce9` for E9. A name that has such letters itself
has `\udc5c` for their backslash.
"""

import re

_NOT_TEXT = re.compile("[\udc80-\udcff]|\\\\(?=udc[0-9a-f]{2})")
_ESCAPED = re.compile(r"\\udc([0-9a-f]{2})")
_BACKSLASH = "5c"


def as_text(value: str) -> str:
    r"""A value that is valid Unicode: bytes of a file name that are none become `\udcXX`."""
    return _NOT_TEXT.sub(lambda found: rf"\udc{ord(found[0]) & 0xFF:02x}", value)


def from_text(value: str) -> str:
    """The value that `as_text` wrote."""
    return _ESCAPED.sub(
        lambda found: "\\" if found[1] == _BACKSLASH else chr(0xDC00 + int(found[1], 16)), value
    )
