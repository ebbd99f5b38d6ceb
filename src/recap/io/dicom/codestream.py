"""The facts a compressed frame states about itself, read before a decoder may act on it.

The decoders are C code that sets memory aside by the frame's own head, not by the file's.
"""

from collections.abc import Iterator
from typing import NamedTuple

_START_OF_FRAME = {*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC}
_START_OF_SCAN, _END = 0xDA, 0xD9
_WITHOUT_LENGTH = {0x01, *range(0xD0, 0xD9)}
_JP2_START = b"\0\0\0\x0cjP  "


class FrameHead(NamedTuple):
    """The size of a compressed frame."""

    rows: int
    columns: int
    samples: int
    bits: int


def jpeg_head(frame: bytes) -> FrameHead:
    """The head of a JPEG or JPEG-LS frame."""
    for marker, segment, _ in jpeg_segments(frame, 0):
        if marker in _START_OF_FRAME and len(segment) >= 6:
            return FrameHead(_short(segment, 1), _short(segment, 3), segment[5], segment[0])
    raise ValueError("a compressed frame has no head")


def jpeg_segments(frame: bytes, start: int) -> Iterator[tuple[int, bytes, int]]:
    """Markers from a position on, what belongs to each, and where it ends; until a scan starts."""
    while start + 2 <= len(frame) and frame[start] == 0xFF:
        marker = frame[start + 1]
        if marker == 0xFF:  # a fill byte
            start += 1
        elif marker in _WITHOUT_LENGTH:
            start += 2
        elif marker == _END:
            return
        else:
            stop = start + 2 + max(2, _short(frame, start + 2))
            yield marker, frame[start + 4 : stop], stop
            if marker == _START_OF_SCAN:
                return
            start = stop


def j2k_head(frame: bytes) -> FrameHead:
    """The head of a JPEG 2000 frame, with or without the boxes of a JP2 file around it."""
    start = _codestream_start(frame) if has_boxes(frame) else 0
    head = frame[start : start + 43]
    if len(head) < 43 or not head.startswith(b"\xff\x4f\xff\x51"):
        raise ValueError("a compressed frame has no head")
    right, bottom, left, top = (_long(head, offset) for offset in (8, 12, 16, 20))
    return FrameHead(bottom - top, right - left, _short(head, 40), (head[42] & 0x7F) + 1)


def has_boxes(frame: bytes) -> bool:
    """Tell whether a JPEG 2000 frame is a whole JP2 file."""
    return frame.startswith(_JP2_START)


def _codestream_start(frame: bytes) -> int:
    start = 0
    while start + 8 <= len(frame):
        if frame[start + 4 : start + 8] == b"jp2c":
            return start + (16 if _long(frame, start) == 1 else 8)
        start += max(8, _long(frame, start))
    return 0


def _short(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 2], "big")


def _long(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 4], "big")
