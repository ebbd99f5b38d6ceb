"""Whatever a file holds: it reads, or one `InputError` says in one line why it does not."""

import json
import random
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLSLossless,
    RLELossless,
)

from dicom_files import (
    STUDY,
    data_set,
    pydicom_data_files,
    pydicom_files,
    save_compressed,
    save_dicom,
    write,
)
from recap.config import ReadingSettings
from recap.errors import InputError
from recap.io.dicom import file as dicom_file
from recap.io.dicom.cases import is_dicom, open_dicom
from recap.io.dicom.series import group_series

READING = ReadingSettings()
LARGEST_SEED = 200_000


def corrupt(data: bytes, chance: random.Random) -> bytes:
    """Flip bytes, cut, or copy a piece of the file over another."""
    damaged = bytearray(data)
    way = chance.randrange(4)
    if way == 0:
        return bytes(damaged[: chance.randrange(len(damaged))])
    # Most of a file is pixels; the head is where a single byte does harm.
    reach = len(damaged) if way == 1 else min(len(damaged), 2500)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(reach)
        if way == 3:
            start, length = chance.randrange(len(damaged)), chance.randint(1, 40)
            damaged[at : at + length] = damaged[start : start + length]
        else:
            damaged[at] = chance.randrange(256)
    return bytes(damaged)


def read_all(path: Path) -> str:
    """Read first, middle and last frame: "" or the refusal; other errors go through."""
    is_dicom(path)
    for series in group_series([path]):
        assert series.files == (path,)
    try:
        case = open_dicom(path, READING)
        for number in {0, len(case.images) // 2, len(case.images) - 1}:
            image = case.images[number]
            assert image.pixels.dtype == np.float32
            assert image.pixels.min() >= 0
            assert image.pixels.max() <= 1
    except InputError as error:
        return str(error)
    return ""


def fuzz(folder: Path, seeds: list[Path], count: int) -> Counter[str]:
    """Count what becomes of damaged copies."""
    outcomes: Counter[str] = Counter()
    path = folder / "damaged.dcm"
    for number in range(count):
        chance = random.Random(number)
        path.write_bytes(corrupt(seeds[number % len(seeds)].read_bytes(), chance))
        reason = read_all(path)
        assert "\n" not in reason, number
        assert not reason or reason.startswith(str(path)), number
        outcomes["refused" if reason else "read"] += 1
    return outcomes


def seeds_from(files: list[Path]) -> list[Path]:
    """Files with pixels, of a size that is read at once."""
    small = (file for file in files if file.stat().st_size < LARGEST_SEED)
    return [file for file in small if is_dicom(file) and not read_all(file)]


@pytest.mark.timeout(120)
def test_damaged_copies_read_or_are_refused(tmp_path: Path) -> None:
    chosen = (
        *("CT_small.dcm", "MR_small_RLE.dcm", "SC_rgb_jpeg_gdcm.dcm", "JPEG2000.dcm"),
        *("SC_rgb_jpeg_dcmtk.dcm", "MR_small_jpeg_ls_lossless.dcm", "image_dfl.dcm"),
        *("examples_palette.dcm", "liver_1frame.dcm", "SC_rgb_small_odd_big_endian.dcm"),
    )
    seeds = [path for path in pydicom_files() if path.name in chosen]
    outcomes = fuzz(tmp_path, seeds, 60)
    assert outcomes["read"] >= 8
    assert outcomes["refused"] >= 10


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.timeout(900)
def test_many_damaged_copies_in_little_memory(tmp_path: Path) -> None:
    """A process of its own: a decoder that crashes, hangs or eats memory must not take ours."""
    seeds = seeds_from([*pydicom_files(), *pydicom_data_files()])
    assert len(seeds) > 90
    script = tmp_path / "run.py"
    script.write_text(
        "import json, resource, sys\n"
        "from pathlib import Path\n"
        f"sys.path[:0] = {[str(Path(__file__).parents[1]), str(Path(__file__).parent)]!r}\n"
        "import test_dicom_hostile as hostile\n"
        "limit = 4 * 2**30\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        f"seeds = [Path(line) for line in {[str(path) for path in seeds]!r}]\n"
        f"outcomes = hostile.fuzz(Path({str(tmp_path)!r}), seeds, 350)\n"
        # Not getrusage: what that tells a child begins with its parent's peak.
        "status = Path('/proc/self/status').read_text()\n"
        "peak = int(status.split('VmHWM:')[1].split()[0])\n"
        "print(json.dumps({**outcomes, 'peak_mb': peak // 1024}))\n"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, timeout=800
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert not done.stderr
    outcomes = json.loads(done.stdout)
    assert outcomes["read"] + outcomes["refused"] == 350
    assert outcomes["read"] >= 50
    assert outcomes["peak_mb"] < 600


def traced_peak(read: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        open_dicom(path, READING).images[0]
    return str(caught.value)


@pytest.mark.parametrize("syntax", [RLELossless, JPEG2000Lossless, JPEGLSLossless])
def test_sizes_are_not_believed(tmp_path: Path, syntax: str) -> None:
    """A head that promises 13000 x 13000 pixels costs next to nothing to refuse."""
    path = save_compressed(tmp_path / "a.dcm", np.zeros((64, 64), np.uint16), syntax)
    dataset = pydicom.dcmread(path)
    dataset.Rows = dataset.Columns = 13_000
    dataset.save_as(path)
    refusal(path)  # what is imported on the way does not count
    assert traced_peak(lambda: refusal(path)) < 10 * 2**20


def test_codestream_that_names_another_size_is_not_decoded(tmp_path: Path) -> None:
    path = save_compressed(tmp_path / "a.dcm", np.zeros((64, 64), np.uint16), JPEG2000Lossless)
    data = bytearray(path.read_bytes())
    at = data.index(b"\xff\x4f\xff\x51")
    data[at + 8 : at + 16] = (60_000).to_bytes(4, "big") * 2
    path.write_bytes(data)
    assert "60000x60000" in refusal(path)


def test_cut_jpeg_ls_does_not_hang(tmp_path: Path) -> None:
    """CharLS runs on for minutes behind the end of some frames; a process can be given up."""
    (path,) = (path for path in pydicom_files() if path.name == "MR_small_jpeg_ls_lossless.dcm")
    data = path.read_bytes()
    start = data.rindex(b"\xff\xd8\xff\xf7")
    for number in range(12):
        cut = start + int(4430 * (0.3 + 0.05 * number))
        (tmp_path / f"{number}.dcm").write_bytes(data[:cut])
    script = (
        "import sys; from pathlib import Path\n"
        "from recap.config import ReadingSettings; from recap.errors import InputError\n"
        "from recap.io.dicom.cases import open_dicom\n"
        "for path in Path(sys.argv[1]).glob('[0-9]*.dcm'):\n"
        "    try: open_dicom(path, ReadingSettings()).images[0]\n"
        "    except InputError: print('refused')\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["refused"] * 12


def test_deflated_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dicom_file, "_MAX_INFLATED", 2**20)
    dataset = data_set(np.zeros((2000, 2000), np.uint8))
    path = write(tmp_path / "a.dcm", dataset, DeflatedExplicitVRLittleEndian)
    assert path.stat().st_size < 2**16
    assert "unpacks to more" in refusal(path)
    (series,) = group_series([path])
    assert not series.skipped


@pytest.fixture
def padded_bomb(tmp_path: Path) -> Path:
    """A deflated file whose transfer syntax stands behind much else."""
    image = data_set(np.zeros((3000, 3000), np.uint16))
    path = write(tmp_path / "padded.dcm", image, DeflatedExplicitVRLittleEndian)
    dataset = pydicom.dcmread(path)
    dataset.file_meta.FileMetaInformationVersion = bytes(5000)
    dataset.save_as(path)
    return path


def test_long_file_meta_is_no_way_around_the_limit(
    padded_bomb: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_dicom(padded_bomb, READING).images[0].pixels.shape == (3000, 3000)
    assert dicom_file.read_whole(padded_bomb).pixel_array.shape == (3000, 3000)
    monkeypatch.setattr(dicom_file, "_MAX_INFLATED", 2**20)
    assert "unpacks to more" in refusal(padded_bomb)
    with pytest.raises(InputError, match="unpacks to more"):
        dicom_file.read_whole(padded_bomb)


def test_names_are_found_without_unpacking_all(padded_bomb: Path) -> None:
    data = padded_bomb.read_bytes()
    found = dicom_file.scan_bytes(data, ["StudyInstanceUID"])
    assert found.StudyInstanceUID == STUDY
    assert traced_peak(lambda: dicom_file.scan_bytes(data, ["StudyInstanceUID"])) < 12 * 2**20


def test_endless_palette_ends(tmp_path: Path) -> None:
    """Segments that repeat each other may not grow without a limit."""
    line = [0, 1, 0] + [1, 65535, 9] * 200 + [2, 65535, 6, 0] * 200
    codes = np.array(line, "<u2").tobytes()
    tags = {"PhotometricInterpretation": "PALETTE COLOR"}
    for colour in ("Red", "Green", "Blue"):
        tags[f"{colour}PaletteColorLookupTableDescriptor"] = [0, 0, 16]
        tags[f"Segmented{colour}PaletteColorLookupTableData"] = codes
    path = save_dicom(tmp_path / "a.dcm", np.zeros((2, 2), np.uint8), **tags)
    assert open_dicom(path, READING).images[0].pixels.shape == (2, 2, 3)
    tags["SegmentedRedPaletteColorLookupTableData"] = np.array([2, 9, 0, 0], "<u2").tobytes()
    assert "palette" in refusal(save_dicom(tmp_path / "b.dcm", np.zeros((2, 2), np.uint8), **tags))


def test_long_clip_is_not_held_in_memory(tmp_path: Path) -> None:
    clip = np.zeros((100, 128, 128), np.uint16)
    path = save_dicom(tmp_path / "a.dcm", clip, Modality="XA")
    open_dicom(path, READING).images[0]
    whole = clip.nbytes

    def look() -> None:
        for _ in open_dicom(path, READING).images:
            pass

    assert traced_peak(look) < whole / 3
