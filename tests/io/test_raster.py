import io
import struct
import threading
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image as PillowImage

from recap.errors import InputError
from recap.io import image_from_array, mask_from_array, raster, read_image, read_mask
from recap.io.raster import MAX_PIXELS, unmarked_greys

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (7, 11), dtype=np.uint8)
RGB = RNG.integers(0, 256, (7, 11, 3), dtype=np.uint8)
DEEP = RNG.integers(0, 65536, (7, 11), dtype=np.uint16)


def save(path: Path, pixels: np.ndarray, **options: object) -> Path:
    PillowImage.fromarray(pixels).save(path, **options)
    return path


@pytest.mark.parametrize("suffix", [".png", ".tif", ".bmp"])
@pytest.mark.parametrize("pixels", [GREY, RGB], ids=["grey", "rgb"])
def test_lossless_8_bit(tmp_path: Path, suffix: str, pixels: np.ndarray) -> None:
    image = read_image(save(tmp_path / f"a{suffix}", pixels))
    assert image.pixels.dtype == np.float32
    assert np.array_equal(image.pixels, pixels.astype(np.float32) / np.float32(255))
    assert image.size_hw == (7, 11)
    assert image.source.endswith(f"a{suffix}")


@pytest.mark.parametrize("suffix", [".jpg", ".webp"])
def test_lossy_formats_come_close(tmp_path: Path, suffix: str) -> None:
    ramp = np.tile(np.linspace(0, 255, 64).astype(np.uint8), (32, 1))
    pixels = read_image(save(tmp_path / f"a{suffix}", ramp, quality=95)).pixels
    grey = pixels if pixels.ndim == 2 else pixels.mean(axis=2)
    assert np.abs(grey - ramp / 255).max() < 0.03


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_16_bit_grey_keeps_its_depth(tmp_path: Path, suffix: str) -> None:
    pixels = read_image(save(tmp_path / f"a{suffix}", DEEP)).pixels
    assert np.array_equal(np.rint(pixels * 65535).astype(np.uint16), DEEP)


def test_16_bit_white_is_zero(tmp_path: Path) -> None:
    path = save(tmp_path / "a.tif", DEEP, tiffinfo={262: 0})
    pixels = read_image(path).pixels
    assert np.array_equal(np.rint(pixels * 65535).astype(np.uint16), 65535 - DEEP)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_12_bits_in_16_are_refused_in_files_and_arrays(tmp_path: Path, suffix: str) -> None:
    twelve = DEEP // 16  # up to 4095: all but black beside 65535
    path = save(tmp_path / f"a{suffix}", twelve)
    for read, source in ((read_image, path), (image_from_array, twelve)):
        with pytest.raises(InputError, match=f"only {twelve.max()} of 65535.*multiply them by 16"):
            read(source)
    with PillowImage.open(path) as picture, pytest.raises(InputError, match="multiply them by 16"):
        image_from_array(picture)
    opaque = np.dstack([twelve, twelve, twelve, np.full_like(twelve, 65535)])
    with pytest.raises(InputError, match="multiply them by 16"):
        image_from_array(opaque)
    assert image_from_array(twelve * 16).pixels.max() > 0.9
    assert not image_from_array(twelve * 0).pixels.any()  # black is black in any range


def test_12_bit_tiff_has_its_own_range(tmp_path: Path) -> None:
    packed = bytes([0x00, 0x0F, 0xFF, 0x80, 0x01, 0x00])  # 0, 4095, 2048, 256: 12 bits each
    tags = {256: 4, 257: 1, 258: 12, 259: 1, 262: 1, 273: 8, 277: 1, 278: 1, 279: len(packed)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    directory = struct.pack("<H", len(tags)) + entries + struct.pack("<I", 0)
    header = b"II*\0" + struct.pack("<I", 8 + len(packed))
    (tmp_path / "a.tif").write_bytes(header + packed + directory)
    expected = [0, 1, 2048 / 4095, 256 / 4095]
    assert read_image(tmp_path / "a.tif").pixels[0].tolist() == pytest.approx(expected, abs=1e-5)


def test_content_decides_not_the_suffix(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", GREY)
    renamed = path.rename(tmp_path / "a.jpg")
    assert np.array_equal(read_image(renamed).pixels * 255, GREY)


def test_float_tiff(tmp_path: Path) -> None:
    unit = (GREY / 255).astype(np.float32)
    assert np.array_equal(read_image(save(tmp_path / "a.tif", unit)).pixels, unit)
    with pytest.raises(InputError, match=r"window"):
        read_image(save(tmp_path / "b.tif", unit * 300))
    unit[2, 3] = np.nan
    with pytest.raises(InputError, match=r"c\.tif.*NaN"):
        read_image(save(tmp_path / "c.tif", unit))


def test_32_bit_integers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="32-bit"):
        read_image(save(tmp_path / "a.tif", GREY.astype(np.int32)))


def test_alpha_lies_over_black(tmp_path: Path) -> None:
    rgba = np.dstack([RGB, GREY])
    expected = (RGB / 255) * (GREY / 255)[..., None]
    assert np.allclose(read_image(save(tmp_path / "a.png", rgba)).pixels, expected, atol=1e-6)
    grey_alpha = PillowImage.merge("LA", [PillowImage.fromarray(c) for c in (GREY, RGB[..., 0])])
    grey_alpha.save(tmp_path / "b.png")
    pixels = read_image(tmp_path / "b.png").pixels
    assert pixels.shape == (7, 11)
    assert np.allclose(pixels, (GREY / 255) * (RGB[..., 0] / 255), atol=1e-6)


def test_palette_becomes_rgb_and_bilevel_grey(tmp_path: Path) -> None:
    palette = PillowImage.fromarray(np.array([[0, 1], [1, 0]], np.uint8), mode="P")
    palette.putpalette([255, 0, 0, 0, 0, 255])
    palette.save(tmp_path / "p.png")
    red, blue = [1, 0, 0], [0, 0, 1]
    assert read_image(tmp_path / "p.png").pixels.tolist() == [[red, blue], [blue, red]]
    palette.save(tmp_path / "t.png", transparency=0)
    assert read_image(tmp_path / "t.png").pixels[0].tolist() == [[0, 0, 0], blue]
    PillowImage.fromarray(GREY > 99).save(tmp_path / "b.png")
    assert np.array_equal(read_image(tmp_path / "b.png").pixels, (GREY > 99).astype(np.float32))


@pytest.mark.parametrize("suffix", [".jpg", ".tif", ".png"])
def test_exif_orientation_is_applied(tmp_path: Path, suffix: str) -> None:
    marked = np.zeros((32, 64), np.uint8)
    marked[:16, :16] = 255
    exif = PillowImage.Exif()
    exif[0x0112] = 6  # stored turned: shown after a quarter turn clockwise
    pixels = read_image(save(tmp_path / f"a{suffix}", marked, exif=exif)).pixels
    assert pixels.shape == (64, 32)
    assert pixels[:8, -8:].mean() > 0.9
    assert pixels[:8, :8].mean() < 0.1


def test_several_frames_are_refused(tmp_path: Path) -> None:
    pages = [PillowImage.fromarray(GREY), PillowImage.fromarray(GREY)]
    pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
    with pytest.raises(InputError, match="2 frames"):
        read_image(tmp_path / "a.tif")


def png_header(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    start = b"\x89PNG\r\n\x1a\n" + chunk(
        b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    )
    return start + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [13_360, 60_000])
def test_huge_images_are_refused_before_decoding(tmp_path: Path, side: int) -> None:
    assert side * side > MAX_PIXELS
    (tmp_path / "a.png").write_bytes(png_header(side, side))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError, match="million pixels"):
            read_image(tmp_path / "a.png")


def test_zero_size_and_damage_and_wrong_type(tmp_path: Path) -> None:
    (tmp_path / "zero.png").write_bytes(png_header(0, 5))
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.png").write_text("no image")
    whole = save(tmp_path / "whole.png", RNG.integers(0, 256, (64, 64), np.uint8)).read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "gif.png").write_bytes(_gif())
    for name, reason in {
        "zero": "zero",
        "empty": "empty",
        "text": "not an image",
        "gif": "not an image",
        "cut": "damaged",
        "missing": "no such file",
    }.items():
        with pytest.raises(InputError, match=reason) as caught:
            read_image(tmp_path / f"{name}.png")
        assert f"{name}.png" in str(caught.value)
    with pytest.raises(InputError, match="folder"):
        read_image(tmp_path)


def _gif() -> bytes:
    stream = io.BytesIO()
    PillowImage.fromarray(GREY).save(stream, "GIF")
    return stream.getvalue()


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(data=st.data(), kind=st.sampled_from(["PNG", "JPEG", "TIFF", "BMP", "WEBP"]))
def test_damage_never_leaks_a_foreign_error(tmp_path: Path, data: st.DataObject, kind: str) -> None:
    stream = io.BytesIO()
    PillowImage.fromarray(RGB).save(stream, kind)
    content = bytearray(stream.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged"
    path.write_bytes(content[: data.draw(st.integers(1, len(content)))])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with suppress(InputError):
            pixels = read_image(path).pixels
            assert pixels.min() >= 0
            assert pixels.max() <= 1


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (GREY, GREY / 255),
        (DEEP, DEEP / 65535),
        (GREY > 9, GREY > 9),
        (GREY / 255, GREY / 255),
        (GREY[..., None], GREY / 255),
        (RGB, RGB / 255),
        (np.dstack([RGB, np.full_like(GREY, 255)]), RGB / 255),
    ],
)
def test_arrays(array: np.ndarray, expected: np.ndarray) -> None:
    image = image_from_array(array)
    assert image.source == "array"
    assert image.pixels.dtype == np.float32
    assert np.allclose(image.pixels, expected, atol=1e-7)


def test_array_is_copied() -> None:
    array = np.zeros((4, 4), np.float32)
    image = image_from_array(array)
    array[0, 0] = 1
    assert image.pixels[0, 0] == 0


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((3, 8, 8), np.uint8), "shape"),
        (np.zeros(8, np.uint8), "shape"),
        (np.zeros((0, 8), np.uint8), "no pixels"),
        (np.zeros((8, 8), np.int64), "int64"),
        (np.full((8, 8), 255.0), "0..1"),
        (np.full((8, 8), -0.1), "0..1"),
        (np.full((8, 8), np.inf), "infinite"),
        ([["a"]], "type"),
    ],
)
def test_wrong_arrays(array: object, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        image_from_array(array, source="scan 7")
    assert "scan 7" in str(caught.value)


LESION = np.array([[0, 1], [1, 0], [0, 0]], bool)


@pytest.mark.parametrize(
    "stored",
    [
        LESION.astype(np.uint8) * 255,
        LESION.astype(np.uint8),
        LESION.astype(np.uint16) * 65535,
        LESION.astype(np.uint16),
        LESION,
        np.dstack([LESION.astype(np.uint8) * c for c in (0, 255, 0)]),
        np.dstack(
            [LESION.astype(np.uint8) * c for c in (255, 0, 0)] + [np.full((3, 2), 255, np.uint8)]
        ),
        np.where(LESION, 200, 100).astype(np.uint8),
        LESION.astype(np.uint8) * 16,
        LESION.astype(np.uint8) * 100,
        LESION.astype(np.uint16) * 32767,
        np.dstack([LESION.astype(np.uint8) * c for c in (0, 90, 40)]),
    ],
)
def test_masks(tmp_path: Path, stored: np.ndarray) -> None:
    mask = read_mask(save(tmp_path / "m.png", stored))
    assert mask.dtype == np.bool_
    assert np.array_equal(mask, LESION)
    for same in (stored, PillowImage.open(tmp_path / "m.png")):
        assert np.array_equal(mask_from_array(same), LESION)


@pytest.mark.parametrize("dtype", [bool, np.int8, np.int64, np.uint32, np.float16, np.float64])
def test_masks_as_arrays_of_any_type_may_hold_0_and_1(dtype: type) -> None:
    assert np.array_equal(mask_from_array(LESION.astype(dtype)), LESION)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (LESION.astype(np.uint8) * 2, "label numbers"),
        (LESION * 255, "type int64 with values from 0 to 255"),
        (LESION.astype(np.int8) * -1, "from -1 to 0"),
        (LESION * 255.0, "spans 0 to 255"),
        (np.where(LESION, 1, np.nan), "NaN"),
        (LESION[..., None, None], r"shape \(H, W\)"),
    ],
)
def test_arrays_that_do_not_say_what_they_mark_are_refused(
    values: np.ndarray, message: str
) -> None:
    with pytest.raises(InputError, match=f"^mask 3: .*{message}"):
        mask_from_array(values, "mask 3")


def test_empty_mask_and_label_numbers(tmp_path: Path) -> None:
    assert not read_mask(save(tmp_path / "e.png", np.zeros((4, 5), np.uint8))).any()
    for labels in (LESION.astype(np.uint8) * 3, LESION.astype(np.uint16) * 255):
        with pytest.raises(InputError, match="label numbers"):
            read_mask(save(tmp_path / "l.png", labels))


@pytest.mark.parametrize("values", [(0, 50, 100), (20, 100, 100), (100, 100, 100)])
def test_a_dark_mask_that_could_mark_anything_is_refused(values: tuple[int, ...], tmp_path: Path):
    stored = np.array([values, values], np.uint8)
    with pytest.raises(InputError, match=r"m\.png.*39%.*Save it with 0 for healthy"):
        read_mask(save(tmp_path / "m.png", stored))


def test_greys_of_a_mask_that_are_areas_rather_than_edges(tmp_path: Path) -> None:
    drawn = np.zeros((20, 30), np.uint8)
    drawn[2:8, 2:12], drawn[10:18, 15:28] = 255, 100
    assert unmarked_greys(save(tmp_path / "m.png", drawn)) == pytest.approx([100 / 255])
    smooth = PillowImage.fromarray(np.where(drawn == 255, 255, 0).astype(np.uint8))
    for px in (40, 90):
        smooth.resize((px, px), PillowImage.Resampling.BILINEAR).save(tmp_path / "s.png")
        assert unmarked_greys(tmp_path / "s.png") == []
    for other in (np.where(drawn, 200, 100), np.where(drawn == 100, 20, drawn), drawn > 0):
        assert unmarked_greys(save(tmp_path / "o.png", other.astype(np.uint8))) == []


def test_threads_decode_side_by_side_and_stay_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "a.png", GREY)
    decode, both_inside = raster._decode, threading.Barrier(2)

    def meet_and_warn(image: PillowImage.Image, path: Path) -> np.ndarray:
        both_inside.wait(timeout=20)
        warnings.warn("loud", stacklevel=1)
        return decode(image, path)

    monkeypatch.setattr(raster, "_decode", meet_and_warn)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        before = list(warnings.filters)
        with ThreadPoolExecutor(2) as threads:
            images = list(threads.map(read_image, [path] * 10))
        assert warnings.filters == before
    assert heard == []
    assert all(np.array_equal(image.pixels, GREY / np.float32(255)) for image in images)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_a_pillow_image_is_read_as_its_file(tmp_path: Path, mode: str) -> None:
    source = PillowImage.fromarray(DEEP if mode == "I;16" else RGB)
    picture = source if mode == "I;16" else source.convert(mode)
    picture.save(tmp_path / "a.png")
    expected = read_image(tmp_path / "a.png").pixels
    assert np.array_equal(image_from_array(picture).pixels, expected)
    with PillowImage.open(tmp_path / "a.png") as opened:
        assert np.array_equal(image_from_array(opened).pixels, expected)


def test_a_pillow_image_of_a_damaged_file_is_refused(tmp_path: Path) -> None:
    whole = save(tmp_path / "a.png", RGB.repeat(20, axis=0)).read_bytes()
    with (
        PillowImage.open(io.BytesIO(whole[: len(whole) // 2])) as opened,
        pytest.raises(InputError, match=r"array: .*damaged or incomplete"),
    ):
        image_from_array(opened)


@pytest.mark.parametrize("wrong", [None, 3, b"png", [[0.5]]])
def test_what_is_no_image_is_named_by_its_type(wrong: object) -> None:
    with pytest.raises(InputError, match=f"not a value of type {type(wrong).__name__}"):
        image_from_array(wrong)
