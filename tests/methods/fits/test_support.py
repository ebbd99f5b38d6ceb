import hashlib

import numpy as np
import pytest
from PIL import Image as PillowImage

import recap
from recap.config import ReadingSettings
from recap.data import folder_samples
from recap.data.support import (
    gather_support,
    load_support,
    spread_over,
    stack_support,
    supervised_maps,
)
from recap.errors import InputError, SettingsError
from recap.methods.images import source_masks
from recap.types import Sample


def save(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    PillowImage.fromarray(values).save(path)
    return path


def grey(seed, size=(40, 30)):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def square(size=(40, 30)):
    mask = np.zeros(size, np.uint8)
    mask[10:20, 5:15] = 255
    return mask


@pytest.fixture
def folders(tmp_path):
    normal = [save(tmp_path / "normal" / f"n{i}.png", grey(i)) for i in range(2)]
    abnormal = [save(tmp_path / "abnormal" / f"a{i}.png", grey(9 + i)) for i in range(2)]
    masks = [save(tmp_path / "masks" / f"a{i}.png", square()) for i in range(2)]
    return {"root": tmp_path, "normal": normal, "abnormal": abnormal, "masks": masks}


def test_folders_lists_and_arrays_hold_the_same_images(folders):
    root = folders["root"]
    from_folders = gather_support(root / "normal", str(root / "abnormal"), root / "masks")
    lists = [str(path) for path in folders["normal"]], folders["abnormal"]
    from_lists = gather_support(*lists, root / "masks")
    from_arrays = gather_support(
        [grey(0), grey(1)], [grey(9), grey(10)], [square() > 0, square() > 0]
    )
    for item, file, array in zip(from_folders, from_lists, from_arrays, strict=True):
        assert np.array_equal(item.image.pixels, array.image.pixels)
        assert item.record == file.record
        assert item.abnormal == file.abnormal == array.abnormal
        if item.abnormal:
            assert np.array_equal(item.mask, array.mask)
        else:
            assert item.mask is None


def test_records_are_the_digests_of_the_files(folders):
    root = folders["root"]
    records = [s.record for s in gather_support(root / "normal", root / "abnormal", root / "masks")]
    digest = hashlib.sha256(folders["abnormal"][1].read_bytes()).hexdigest()
    assert records[3] == {
        "name": "a1.png",
        "label": "abnormal",
        "sha256": digest,
        "mask_sha256": hashlib.sha256(folders["masks"][1].read_bytes()).hexdigest(),
    }
    assert (records[0]["label"], records[0]["mask_sha256"]) == ("normal", None)


def test_images_may_be_given_as_such(folders):
    image = recap.read_image(folders["normal"][0])
    assert np.array_equal(gather_support([image])[0].image.pixels, image.pixels)


def test_stack_brings_images_and_masks_to_the_square(folders):
    root = folders["root"]
    support = gather_support(root / "normal", root / "abnormal", root / "masks")
    pixels, masks = stack_support(support, 70)
    assert pixels.shape == (4, 3, 70, 70)
    assert pixels.min() >= 0
    assert pixels.max() <= 1
    assert masks.flatten(1).any(dim=1).tolist() == [False, False, True, True]
    rows, columns = masks[2].nonzero(as_tuple=True)
    # rows 10..20 of 40 and columns 5..15 of 30, at 70 px
    assert (int(rows.min()), int(rows.max()) + 1) == (17, 35)
    assert (int(columns.min()), int(columns.max()) + 1) == (12, 35)


@pytest.mark.parametrize(
    ("masks", "expected"),
    [
        ([True, True], [True, True, True, True]),
        ([True, False], [True, True, True, False]),
        ([False, False], [False, False, False, False]),
    ],
)
def test_whose_maps_are_supervised(masks, expected):
    given = [square() > 0 if there else None for there in masks]
    support = gather_support([grey(0), grey(1)], [grey(2), grey(3)], given)
    assert supervised_maps(support) == expected


def test_mask_array_of_another_size():
    with pytest.raises(InputError, match=r"abnormal\[0\].*\(30, 40\).*\(40, 30\)"):
        gather_support([grey(0)], [grey(1)], [square((30, 40))])


def test_a_mask_means_the_same_as_an_array_and_as_a_file(folders):
    """A smoothed edge ends at half of full brightness, in an array too."""
    smooth = square()
    smooth[9, 5:15], smooth[20, 5:15] = 100, 200
    files = [save(path, smooth) for path in folders["masks"]]
    stored = gather_support(folders["normal"], folders["abnormal"], files)[-1].mask
    given = gather_support([grey(0)], [grey(1)], [smooth])[-1].mask
    assert np.array_equal(given, stored)
    assert not given[9].any()
    assert given[20].any()
    with pytest.raises(InputError, match=r"abnormal\[0\], its mask: .*label numbers"):
        gather_support([grey(0)], [grey(1)], [square() // 64])


def test_an_array_counts_once():
    for normal, abnormal, names in (
        ([grey(0), grey(1), grey(0)], None, r"normal\[2\] and normal\[0\]"),
        ([grey(0), grey(1)], [grey(2), grey(1)], r"abnormal\[1\] and normal\[1\]"),
    ):
        with pytest.raises(InputError, match=f"{names} are the same image"):
            gather_support(normal, abnormal)
    blank = np.zeros((40, 30), np.uint8)
    assert len(gather_support([blank, blank.reshape(30, 40)])) == 2


def test_mask_file_of_another_size(folders):
    path = save(folders["root"] / "other" / "a0.png", square((20, 30)))
    sample = Sample(folders["abnormal"][0], abnormal=True, mask=path)
    with pytest.raises(InputError, match=r"other/a0\.png.*30×20.*a0\.png is 30×40"):
        load_support([sample])


def test_a_mask_that_marks_nothing_is_refused(folders):
    save(folders["masks"][1], np.zeros((40, 30), np.uint8))
    root = folders["root"]
    with pytest.raises(InputError, match=r"masks/a1\.png: it marks nothing"):
        gather_support(root / "normal", root / "abnormal", root / "masks")
    with pytest.raises(InputError, match=r"abnormal\[1\], its mask: it marks nothing"):
        gather_support([grey(0)], [grey(1), grey(2)], [square(), np.zeros((40, 30))])


def test_number_of_masks_must_fit():
    with pytest.raises(InputError, match=r"2 abnormal images but 1 mask\."):
        gather_support([grey(0)], [grey(1), grey(2)], [square()])


def test_arrays_and_folders_do_not_mix(folders):
    root = folders["root"]
    with pytest.raises(InputError, match="cannot be mixed"):
        gather_support([grey(0)], root / "abnormal")
    with pytest.raises(InputError, match="cannot be mixed"):
        gather_support([grey(0)], [grey(1)], str(root / "masks"))


def test_no_normal_files(tmp_path, folders):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty: no images"):
        gather_support(tmp_path / "empty", folders["abnormal"])
    with pytest.raises(InputError, match="empty"):
        gather_support([])


def test_damaged_support_file_is_named(folders):
    folders["normal"][1].write_bytes(b"\x89PNG\r\n\x1a\n broken")
    with pytest.raises(InputError, match=r"n1\.png"):
        gather_support(folders["root"] / "normal")


def test_array_of_unknown_range_is_refused():
    with pytest.raises(InputError, match=r"normal\[1\].*span"):
        gather_support([grey(0), np.full((8, 8), 300.0)])


def test_images_that_are_chosen_are_spread_over_all():
    assert [spread_over(count, 4) for count in (1, 3)] == [[0], [0, 1, 2]]
    assert spread_over(4, 4) == spread_over(5, 4) == [0, 1, 2, 3]
    assert spread_over(16, 4) == [0, 4, 8, 12]
    assert spread_over(203, 4) == [0, 50, 101, 152]
    assert [len(spread_over(count, 20)) for count in (19, 20, 21, 30, 41)] == [19] + [20] * 4


def test_files_may_have_a_list_of_masks(folders):
    one, two = folders["abnormal"]
    first, second = folders["masks"]
    support = gather_support(folders["normal"], [two, str(one)], [second, None])
    assert [item.record["name"] for item in support] == ["n0.png", "n1.png", "a1.png", "a0.png"]
    assert [item.mask is not None for item in support] == [False, False, True, False]
    with pytest.raises(InputError, match="2 abnormal images but 1 mask"):
        gather_support(folders["normal"], [one, two], [first])
    with pytest.raises(InputError, match="needs a list of abnormal images"):
        gather_support(folders["normal"], folders["root"] / "abnormal", [first, second])


def test_a_stack_and_an_iterator_are_lists_of_arrays():
    pictures = [grey(0), grey(1)]
    for given in (np.stack(pictures), iter(pictures), tuple(pictures)):
        assert [item.record["name"] for item in gather_support(given)] == ["normal[0]", "normal[1]"]
    assert len(gather_support(pictures, [], [])) == 2
    assert gather_support(pictures, [grey(2)], [None])[2].mask is None


@pytest.mark.parametrize("given", [None, 3, PillowImage.fromarray(grey(0))])
def test_what_is_no_list_of_images_is_refused(given):
    with pytest.raises(InputError, match="normal: give a folder, or a list"):
        gather_support(given)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_one_image_in_colour_is_no_stack_of_its_rows(channels):
    image = np.stack([grey(0)] * channels, axis=2)
    with pytest.raises(InputError, match=r"normal: an array of shape .* is one image"):
        gather_support(image)
    assert len(gather_support(image[None])) == 1


def test_files_among_arrays_are_refused(folders):
    with pytest.raises(InputError, match="cannot be mixed"):
        gather_support([grey(0), folders["normal"][0]])


def test_a_window_that_is_none_is_told_before_it_is_needed(folders):
    """Pictures are read without it; only the first DICOM file to be scored would tell."""
    reading = ReadingSettings(window="lungs")
    for normal in (folders["root"] / "normal", [np.zeros((8, 8), np.uint8)]):
        with pytest.raises(SettingsError, match=r"reading\.window = 'lungs' is not a window"):
            gather_support(normal, reading=reading)
    with pytest.raises(SettingsError, match="'lungs'"):
        load_support(folder_samples(folders["root"] / "normal"), reading)
    with pytest.raises(SettingsError, match="'lungs'"):
        source_masks(folder_samples(folders["root"] / "normal"), 70, reading)


def test_swapped_images_and_masks_are_refused(folders):
    root = folders["root"]
    with pytest.raises(InputError, match=r"masks/a0.png: black and white.*swapped\?"):
        gather_support(root / "normal", folders["masks"][:1], folders["abnormal"][:1])
    with pytest.raises(InputError, match=r"abnormal\[0\]: black and white.*swapped\?"):
        gather_support([grey(0)], [np.dstack([square()] * 3)], [grey(9)])
