"""What decoding may take is known before a decoder runs, and shared by all threads."""

import struct
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recap.errors import InputError, SettingsError
from recap.io import open_file, raster, read_image, read_mask, resize, window
from recap.io.decoding import VARIABLE, DecodingBudget, OverBudgetError, limit_from_environment

PEAK = """
import sys
from recap.errors import InputError
from recap.io import read_image
try:
    read_image(sys.argv[1])
except InputError as error:
    print(error)
print(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
"""


def write_flat_png(path: Path, width: int, height: int) -> Path:
    """A huge RGB picture of one colour in a small file, written without ever holding it."""
    packer = zlib.compressobj(9)
    rows = [packer.compress(bytes(1 + 3 * width)) for _ in range(height)]
    data = b"".join(rows) + packer.flush()
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", data), (b"IEND", b"")]
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(
            struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d))
            for n, d in chunks
        )
    )
    return path


def test_a_small_file_with_a_huge_picture_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    path = write_flat_png(tmp_path / "bomb.png", 13_000, 13_000)
    assert path.stat().st_size < 3e6
    monkeypatch.setenv(VARIABLE, "2")
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True
    )
    *said, peak_kb = done.stdout.splitlines()
    assert all(part in said[0] for part in (str(path), f"{VARIABLE}=3", "slide"))
    assert int(peak_kb) < 300_000


def test_the_estimate_is_no_less_than_what_is_taken(tmp_path, monkeypatch):
    path = write_flat_png(tmp_path / "large.png", 4_000, 4_000)
    small = write_flat_png(tmp_path / "small.png", 8, 8)
    monkeypatch.setenv(VARIABLE, "9")
    peaks = []
    for file in (small, path):
        done = subprocess.run(
            [sys.executable, "-c", PEAK, str(file)], capture_output=True, text=True, check=True
        )
        peaks.append(1024 * int(done.stdout.split()[-1]))
    taken = peaks[1] - peaks[0]
    monkeypatch.setenv(VARIABLE, str(0.9 * taken / 1e9))
    with pytest.raises(OverBudgetError):
        read_image(path)
    monkeypatch.setenv(VARIABLE, str(1.5 * taken / 1e9))
    assert read_image(path).size_hw == (4_000, 4_000)


def test_threads_wait_for_room_rather_than_sum_up():
    budget, guard = DecodingBudget(100), threading.Lock()
    at_once, most = 0, 0

    def decode():
        nonlocal at_once, most
        with budget.room(40, "x"):
            with guard:
                at_once += 1
                most = max(most, at_once)
            time.sleep(0.01)
            with guard:
                at_once -= 1

    threads = [threading.Thread(target=decode) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert most == 2
    assert at_once == 0


def test_a_large_picture_is_not_overtaken_for_ever():
    budget, order = DecodingBudget(100), []

    def decode(name, needed):
        with budget.room(needed, name):
            order.append(name)

    with budget.room(60, "first"):
        large = threading.Thread(target=decode, args=("large", 90))
        large.start()
        while not budget._waiting:
            time.sleep(0.001)
        small = threading.Thread(target=decode, args=("small", 10))
        small.start()
        time.sleep(0.05)
        assert order == []
    large.join(20)
    small.join(20)
    assert order == ["large", "small"]


def test_a_thread_never_waits_for_itself():
    budget = DecodingBudget(100)
    with budget.room(80, "x"), budget.room(80, "x"):
        pass
    with budget.room(100, "x"):
        pass


def test_room_is_given_back_after_a_failure():
    budget = DecodingBudget(100)
    for _ in range(3):
        with pytest.raises(ValueError, match="damaged"), budget.room(100, "x"):
            raise ValueError("damaged")


def test_a_share_of_the_budget_names_the_whole_that_would_do(monkeypatch):
    monkeypatch.setenv(VARIABLE, "4")
    share = DecodingBudget()
    share.restrict(2 * 10**9)
    with pytest.raises(OverBudgetError, match=f"{VARIABLE}=6"):
        share.check(2.9e9, "x.png")


@pytest.mark.parametrize("text", ["none", "-1", "0", "inf", "nan"])
def test_an_impossible_budget_is_refused(text, monkeypatch):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(SettingsError, match=VARIABLE):
        limit_from_environment()


def test_without_a_setting_half_of_the_memory_is_the_most(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("recap.io.decoding.machine_bytes", lambda: 10**9)
    assert limit_from_environment() == 5 * 10**8


def test_every_reader_asks_for_room(tmp_path, monkeypatch):
    pytest.importorskip("pydicom")
    pytest.importorskip("nibabel")
    pytest.importorskip("nrrd")
    from dicom_files import save_dicom
    from volume_files import affine, write_nifti, write_nrrd

    voxels = np.random.default_rng(0).integers(0, 900, (40, 40, 40)).astype(np.int16)
    Image.fromarray(voxels[0].astype(np.uint8)).save(tmp_path / "x.png")
    save_dicom(tmp_path / "x.dcm", voxels[0].astype(np.uint16))
    write_nifti(tmp_path / "x.nii.gz", voxels, affine(np.eye(3)))
    write_nrrd(tmp_path / "x.nrrd", voxels, affine(np.eye(3)))
    for file in sorted(tmp_path.iterdir()):
        assert len(open_file(file).images[0].pixels)
    monkeypatch.setenv(VARIABLE, "0.000004")
    for file in sorted(tmp_path.iterdir()):
        with pytest.raises(OverBudgetError, match=file.name):
            open_file(file).images[0]
    with pytest.raises(OverBudgetError, match=r"x\.png"):
        read_mask(tmp_path / "x.png")


def test_a_part_of_a_slide_asks_for_room(tmp_path, monkeypatch):
    pytest.importorskip("openslide")
    pytest.importorskip("tifffile")
    from recap.io.slide_pixels import Slide
    from slide_files import write_slide

    write_slide(tmp_path / "x.tif", np.zeros((128, 128, 3), np.uint8))
    slide = Slide(tmp_path / "x.tif")
    assert slide.read((0, 0), 1.0, (64, 64)).shape == (64, 64, 3)
    monkeypatch.setenv(VARIABLE, "0.00001")
    with pytest.raises(OverBudgetError, match=r"x\.tif"):
        slide.read((0, 0), 1.0, (64, 64))


def test_no_memory_is_not_called_damage(tmp_path, monkeypatch):
    Image.new("L", (9, 9)).save(tmp_path / "x.png")
    monkeypatch.setattr(raster, "pixels_of", lambda *_: np.empty(10**15))
    with pytest.raises(InputError) as caught:
        read_image(tmp_path / "x.png")
    assert caught.value.code == "no_memory"


def test_bands_change_no_value(tmp_path, monkeypatch):
    colours = np.random.default_rng(0).integers(0, 256, (37, 23, 4), np.uint8)
    values = np.random.default_rng(1).normal(0, 900, (37, 23)).astype(np.float32)
    made = Image.fromarray(colours)

    def all_of_it():
        modes = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "I", "F")
        decoded = [raster.mask_from_array(values > 0)]
        decoded += [raster.pixels_of(made.convert("RGB").convert(m)) for m in modes if m != "PA"]
        shown = window.apply_window(values, (-160, 240))
        back = resize.SquareResize((37, 23), 50).invert(np.zeros((50, 50), np.float32) + 0.5)
        return [*decoded, shown, back]

    whole = all_of_it()
    monkeypatch.setattr(raster, "_BAND_PX", 50)
    monkeypatch.setattr(window, "_BAND_VALUES", 50)
    for one, other in zip(whole, all_of_it(), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(raster.pixels_of(made), colours)
