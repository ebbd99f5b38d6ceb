"""Stored bytes to one frame of numbers, by decoders that no damaged file can crash or hang.

Fuzzing showed that gdcm aborts the process on damaged frames of every kind, that pylibjpeg-rle
panics, that openjpeg believes any size that a frame names, and that CharLS runs on behind the end
of a frame that was cut. Hence no gdcm but a decoder of our own for lossless JPEG, pydicom's own for
RLE, a look at each frame's head before it is decoded, and an end mark behind those of JPEG-LS.
"""

from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from recap.errors import InputError, require
from recap.io.dicom._lossless_jpeg import decode_lossless
from recap.io.dicom.codestream import FrameHead, has_boxes, j2k_head, jpeg_head
from recap.io.raster import MAX_PIXELS

EXPORT_AGAIN = "Copy or export it again."
MAX_FRAMES = 2**15
"""A file of one-pixel frames would otherwise keep scoring busy for days."""
IMPLICIT, LITTLE, BIG = "1.2.840.10008.1.2", "1.2.840.10008.1.2.1", "1.2.840.10008.1.2.2"
_JPEG = "1.2.840.10008.1.2.4."
_EXTENDED = _JPEG + "51"
_LOSSLESS = (_JPEG + "57", _JPEG + "70")
_JPEG_LS = (_JPEG + "80", _JPEG + "81")
_J2K = (_JPEG + "90", _JPEG + "91")
_HTJ2K = (_JPEG + "201", _JPEG + "202", _JPEG + "203")
_RLE = "1.2.840.10008.1.2.5"
_PLUGINS = {
    _JPEG + "50": "pillow",
    _EXTENDED: "pillow",
    **dict.fromkeys(_JPEG_LS, "pyjpegls"),
    **dict.fromkeys(_J2K, "pillow"),
    **dict.fromkeys(_HTJ2K, "pylibjpeg"),
    _RLE: "pydicom",
}
# Decoders keep the encoded frame, their own buffer, pydicom's and the array; ours of lossless JPEG
# reckons with 64 bits. Floats in the file's unit, of the picture and of its sorted values follow.
_COPIES, _LOSSLESS_BYTES, _SHOWING_BYTES = 4, 48, 36
_END_OF_IMAGE = b"\xff\xd9"
# RLE makes at most 128 bytes out of two.
_RLE_MOST = 64


@dataclass(frozen=True)
class Layout:
    """The form in which a file's pixels are stored."""

    syntax: str
    keyword: str
    vr: str
    start: int
    length: int
    """Bytes that the pixels can take at most."""
    encapsulated: bool
    rows: int
    columns: int
    frames: int
    samples: int
    bits_allocated: int
    bits_stored: int
    signed: bool
    planar: bool
    photometric: str
    extended_offsets: tuple[bytes, bytes] | None = None
    high_bit: int | None = None
    """The place of a sample's highest bit, where the file names one."""

    @property
    def low_bits(self) -> int:
        """The bits of a word below its sample: old files keep 12 bits at the upper end.

        Of other compressed frames the decoder gives samples, not words. A place that cannot be was
        forgotten when the samples were changed: it says nothing.
        """
        packed = self.encapsulated and self.syntax != _RLE
        if packed or self.high_bit is None or self.high_bit >= self.bits_allocated:
            return 0
        return max(0, self.high_bit + 1 - self.bits_stored)

    @property
    def frame_bits(self) -> int:
        """The size of one frame that is not compressed."""
        bits = self.rows * self.columns * self.samples * self.bits_allocated
        return bits // 3 * 2 if self.photometric == "YBR_FULL_422" else bits

    @property
    def decoding_bytes(self) -> int:
        """The most memory that decoding one frame takes: the stored bytes, and copies of them."""
        samples = self.rows * self.columns * self.samples
        if self.syntax in _LOSSLESS:
            return samples * _LOSSLESS_BYTES
        return samples * _COPIES * max(1, self.bits_allocated // 8)

    @property
    def showing_bytes(self) -> int:
        """The most memory that one frame takes until it is an image."""
        pixels = self.rows * self.columns
        stored = pixels * self.samples * max(1, self.bits_allocated // 8)
        return max(self.decoding_bytes, stored + pixels * _SHOWING_BYTES)

    def check(self, source: str) -> None:
        """Refuse sizes that are impossible, too large, or not backed by bytes."""
        size = f"{self.rows}x{self.columns} pixels"
        if self.rows < 1 or self.columns < 1:
            raise InputError(
                f"{source}: holds pixels but names no size for them. {EXPORT_AGAIN}", path=source
            )
        if self.samples not in (1, 3):
            raise InputError(
                f"{source}: has {self.samples} samples for each pixel, and only one or three are "
                "read. Export it in grey or as RGB.",
                path=source,
            )
        if self.rows * self.columns > MAX_PIXELS:
            raise InputError(
                f"{source}: has {size}, and more than {MAX_PIXELS // 10**6} million are not read. "
                "Cut it into tiles or shrink it.",
                code="too_large",
                path=source,
            )
        if self.frames > MAX_FRAMES:
            raise InputError(
                f"{source}: has {self.frames} frames, and more than {MAX_FRAMES} are not read. "
                "Cut it into parts.",
                path=source,
            )
        if not 1 <= self.bits_stored <= self.bits_allocated <= 64:
            raise InputError(
                f"{source}: {self.bits_stored} bits stored in {self.bits_allocated} cannot be. "
                f"{EXPORT_AGAIN}",
                path=source,
            )
        # Each compressed frame is an item with a head of eight bytes.
        needed = 8 * self.frames if self.encapsulated else (self.frame_bits * self.frames + 7) // 8
        if self.length < max(1, needed):
            raise InputError(
                f"{source}: the file ends early: {self.frames} frame(s) of {size} take at least "
                f"{needed} bytes, and {self.length} are there. {EXPORT_AGAIN}",
                path=source,
            )

    def check_single(self, source: str) -> None:
        """Refuse several frames where the file does not say how many there are."""
        # Pixels end on an even byte: a small picture may have room for another behind it.
        single = (self.frame_bits + 15) // 16 * 2
        held = self.length * 8 // self.frame_bits
        if not self.encapsulated and self.length > single and held > 1:
            raise InputError(
                f"{source}: holds the bytes of {held} frames of {self.rows}x{self.columns} pixels "
                f"but names no number of them (NumberOfFrames). {EXPORT_AGAIN}",
                path=source,
            )

    def corrected(self) -> "Layout":
        """Files without compression that name subsampled colour may hold it in full."""
        full = replace(self, photometric="YBR_FULL")
        subsampled = self.photometric == "YBR_FULL_422" and not self.encapsulated
        return full if subsampled and self.length * 8 >= full.frame_bits * self.frames else self


def decode_frame(stream: IO[bytes], layout: Layout, number: int, source: str) -> NDArray[Any]:
    """One frame: (rows, columns), or RGB (rows, columns, 3)."""
    stream.seek(layout.start)
    if layout.encapsulated:
        return _decode_compressed(stream, layout, number, source)
    if layout.bits_allocated == 1 and layout.samples == 1:
        return _unpack_bits(stream, layout, number)
    if layout.syntax in _PLUGINS or layout.syntax in _LOSSLESS:
        # Some programs unpack the pixels and leave the name of the compression in place.
        layout = replace(layout, syntax=LITTLE)
    decoder = _decoder(layout, source)
    values, meta = decoder.as_array(stream, index=number, **_options(layout))
    if layout.low_bits:
        values = values >> layout.low_bits
    return _checked_colour(values, str(meta["photometric_interpretation"]), source)


def _decode_compressed(stream: IO[bytes], layout: Layout, number: int, source: str) -> NDArray[Any]:
    decoder = _decoder(layout, source)
    if decoder.is_native:
        raise ValueError("its pixels are compressed, but it says that they are not")
    encaps = require("pydicom.encaps", "dicom")
    frame = encaps.get_frame(
        stream,
        number,
        number_of_frames=layout.frames,
        extended_offsets=layout.extended_offsets,
    )
    bits = _check_head(frame, layout)
    if layout.syntax in _LOSSLESS:
        return _lossless_values(frame, layout, source)
    plugin = _plugin(decoder, layout, frame, bits, source)
    # The mark would let other decoders make up what is missing.
    guard = _END_OF_IMAGE if layout.syntax in _JPEG_LS else b""
    item = encaps.encapsulate([frame + guard], has_bot=False)
    options = _options(layout) | {"number_of_frames": 1}
    try:
        values, meta = decoder.as_array(item, index=0, decoding_plugin=plugin, **options)
    except RuntimeError as error:
        raise ValueError(f"a compressed frame: {str(error).rpartition('plugins:')[2]}") from error
    if layout.low_bits:
        values = values >> layout.low_bits
    return _checked_colour(values, str(meta["photometric_interpretation"]), source)


def _check_head(frame: bytes, layout: Layout) -> int:
    """The bits of a sample, once the frame's own size is known to be that of the file."""
    if layout.syntax == _RLE:
        if layout.frame_bits > 8 * _RLE_MOST * len(frame):
            raise ValueError("a compressed frame ends early")
        return layout.bits_stored
    head = (j2k_head if layout.syntax in (*_J2K, *_HTJ2K) else jpeg_head)(frame)
    expected = FrameHead(layout.rows, layout.columns, layout.samples, head.bits)
    if head != expected or head.bits > layout.bits_allocated:
        raise ValueError(
            f"a compressed frame of {head.rows}x{head.columns}x{head.samples} in a file of "
            f"{layout.rows}x{layout.columns}x{layout.samples}"
        )
    return head.bits


def _decoder(layout: Layout, source: str) -> Any:
    pixels = require("pydicom.pixels", "dicom")
    try:
        return pixels.get_decoder(layout.syntax)
    except NotImplementedError as error:
        raise InputError(
            f"{source}: its pixels are stored as {_syntax_name(layout.syntax)}, which is not read. "
            "Export it without compression, or as JPEG 2000.",
            path=source,
        ) from error


def _plugin(decoder: Any, layout: Layout, frame: bytes, bits: int, source: str) -> str:
    """The decoder to use; Pillow stumbles over JP2 boxes and cuts deep colour down to 8 bits."""
    plugin = _PLUGINS.get(layout.syntax, "")
    if layout.syntax in _J2K and (has_boxes(frame) or (bits > 8 and layout.samples == 3)):
        plugin = "pylibjpeg"
    if layout.syntax == _EXTENDED and bits > 8:
        plugin = "pylibjpeg"
    if plugin in decoder.available_plugins:
        return plugin
    name = _syntax_name(layout.syntax)
    if layout.syntax == _EXTENDED:
        raise InputError(
            f"{source}: its pixels are stored as {name} with {bits} bits, for which no decoder is "
            "installed. Install it with: pip install pylibjpeg-libjpeg (GPL-3, and therefore not "
            "brought along).",
            path=source,
        )
    raise InputError(
        f"{source}: its pixels are stored as {name}, for which no decoder is installed. "
        "Install it with: pip install 'recap-ad[dicom]'",
        path=source,
    )


def _syntax_name(syntax: str) -> str:
    return str(require("pydicom.uid", "dicom").UID(syntax).name)


def _options(layout: Layout) -> dict[str, Any]:
    """The layout in pydicom's words."""
    return {
        "rows": layout.rows,
        "columns": layout.columns,
        "number_of_frames": layout.frames,
        "samples_per_pixel": layout.samples,
        "bits_allocated": layout.bits_allocated,
        # pydicom takes the lowest bits, whatever lies below a sample; that is shifted out later.
        "bits_stored": layout.bits_stored + layout.low_bits,
        "pixel_representation": int(layout.signed),
        "photometric_interpretation": layout.photometric,
        "planar_configuration": int(layout.planar),
        "pixel_keyword": layout.keyword,
        "pixel_vr": layout.vr,
    }


def _checked_colour(values: NDArray[Any], photometric: str, source: str) -> NDArray[Any]:
    if values.ndim == 3 and photometric != "RGB":
        raise InputError(
            f"{source}: its colours are stored as {photometric}, which is not read. "
            "Export it as RGB.",
            path=source,
        )
    return values


def _lossless_values(frame: bytes, layout: Layout, source: str) -> NDArray[Any]:
    """Samples with the sign of the file and without the bits that it does not use."""
    values = decode_lossless(frame).astype(f"u{layout.bits_allocated // 8}")
    unused = layout.bits_allocated - layout.bits_stored
    values = (values << unused).view(f"{'i' if layout.signed else 'u'}{values.itemsize}") >> unused
    if layout.samples == 1:
        return values[..., 0]
    if layout.photometric in ("YBR_FULL", "YBR_FULL_422"):
        pixels = require("pydicom.pixels", "dicom")
        return pixels.convert_color_space(values, "YBR_FULL", "RGB")
    return _checked_colour(values, layout.photometric, source)


def _unpack_bits(stream: IO[bytes], layout: Layout, number: int) -> NDArray[Any]:
    """A frame of single bits, which may start and end inside of a byte.

    pydicom reads a byte too few of some such frames.
    """
    count = layout.rows * layout.columns
    first, skipped = divmod(number * count, 8)
    length = (skipped + count + 7) // 8
    # Words of a big-endian file have their two bytes exchanged, wherever the frame starts.
    odd = first % 2
    stream.seek(layout.start + first - odd)
    packed = np.frombuffer(
        stream.read((odd + length + 1) // 2 * 2).ljust(odd + length, b"\0"), "u1"
    )
    if layout.syntax == BIG and layout.vr == "OW":
        packed = packed[: len(packed) // 2 * 2].reshape(-1, 2)[:, ::-1].reshape(-1)
    bits = np.unpackbits(packed[odd:], bitorder="little")[skipped : skipped + count]
    return bits.reshape(layout.rows, layout.columns)
