from pathlib import Path

import pytest

from recap.data.folder import folder_samples, list_images, match_masks, pair_masks
from recap.errors import InputError


def touch(root: Path, *names: str) -> list[Path]:
    paths = [root / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return paths


def test_listing_is_natural_recursive_and_skips_the_hidden(tmp_path: Path) -> None:
    touch(tmp_path, "s10.png", "s2.PNG", "s1.jpeg", "b/s3.tif", ".x.png", ".git/y.png", "notes.txt")
    names = [path.relative_to(tmp_path).as_posix() for path in list_images(tmp_path)]
    assert names == ["b/s3.tif", "s1.jpeg", "s2.PNG", "s10.png"]


def test_a_hidden_parent_does_not_hide_the_root(tmp_path: Path) -> None:
    touch(tmp_path, ".cache/a.png")
    assert len(list_images(tmp_path / ".cache")) == 1


def test_linked_folders_are_followed_once(tmp_path: Path) -> None:
    touch(tmp_path, "far/a.png", "near/b.png")
    (tmp_path / "near/link").symlink_to(tmp_path / "far")
    (tmp_path / "far/loop").symlink_to(tmp_path / "near")
    assert [path.name for path in list_images(tmp_path / "near")] == ["b.png", "a.png"]


def test_what_a_link_and_a_folder_lead_to_is_listed_once_by_its_real_name(tmp_path: Path) -> None:
    touch(tmp_path, "a/z/s.png", "b/t.png", "outside/u.png")
    root = tmp_path / "root"
    root.mkdir()
    for name in ("a", "b"):
        (tmp_path / name).rename(root / name)
    # Before and behind their targets, above and below them, and two to one folder elsewhere.
    (root / "0").symlink_to(root / "a/z")
    (root / "a/up").symlink_to(root)
    (root / "a/b").symlink_to(root / "b")
    (root / "c").symlink_to(root / "b")
    (root / "d").symlink_to(tmp_path / "outside")
    (root / "e").symlink_to(tmp_path / "outside")
    found = [path.relative_to(root).as_posix() for path in list_images(root)]
    assert found == ["a/z/s.png", "b/t.png", "d/u.png"]


def test_a_file_stands_for_itself(tmp_path: Path) -> None:
    (file,) = touch(tmp_path, "scan")
    assert list_images(file) == [file]


@pytest.mark.parametrize("name", ["", "missing"])
def test_nothing_to_list(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=tmp_path.name):
        list_images(tmp_path / name)


def test_masks_by_name(tmp_path: Path) -> None:
    images = touch(tmp_path, "img/a.jpg", "img/b.jpg", "img/c.jpg")
    masks = touch(tmp_path, "mask/a.png", "mask/b_mask.png", "mask/c-mask.png")
    assert match_masks(images, tmp_path / "mask") == dict(zip(images, masks, strict=True))


def test_several_masks_of_an_image_are_neither_orphans_nor_chosen_from(tmp_path: Path) -> None:
    """As BUSI has them, one for each lesion."""
    images = touch(tmp_path, "img/benign (1).png", "img/b.png", "img/c_mask.png")
    masks = touch(tmp_path, "mask/benign (1)_mask.png", "mask/b_mask_1.png", "mask/c_mask.png")
    assert match_masks(images, tmp_path / "mask") == dict(zip(images, masks, strict=True))
    touch(tmp_path, "mask/benign (1)_mask_1.png")
    where = r"has 2 masks \(benign \(1\)_mask\.png, benign .*_1\.png\)\. Merge them into one"
    with pytest.raises(InputError, match=where):
        match_masks(images, tmp_path / "mask")


def test_mismatches_name_up_to_five(tmp_path: Path) -> None:
    images = touch(tmp_path, *(f"img/{i}.png" for i in range(8)))
    touch(tmp_path, "mask/0.png")
    with pytest.raises(InputError, match=r"1\.png, 2\.png, 3\.png, 4\.png, 5\.png and 2 more"):
        match_masks(images, tmp_path / "mask")
    touch(tmp_path, *(f"mask/{i}.png" for i in range(9)))
    with pytest.raises(InputError, match=r"1 mask without an image \(8\.png\)"):
        match_masks(images, tmp_path / "mask")
    touch(tmp_path, "mask/3_mask.png")
    with pytest.raises(InputError, match=r"3\.png.*2 masks"):
        match_masks(images, tmp_path / "mask")


def test_equal_names_cannot_be_matched(tmp_path: Path) -> None:
    images = touch(tmp_path, "img/p1/a.png", "img/p2/a.png")
    touch(tmp_path, "mask/a.png")
    with pytest.raises(InputError, match="share a name"):
        match_masks(images, tmp_path / "mask")


def test_samples_put_normals_first(tmp_path: Path) -> None:
    touch(tmp_path, "ok/1.png", "ok/2.png", "sick/3.png", "sick/masks/3.png")
    samples = folder_samples(tmp_path / "ok", tmp_path / "sick", tmp_path / "sick/masks", "Knee")
    assert [(s.path.name, s.abnormal) for s in samples] == [
        ("1.png", False),
        ("2.png", False),
        ("3.png", True),
    ]
    assert [s.mask for s in samples] == [None, None, tmp_path / "sick/masks/3.png"]
    assert {s.domain for s in samples} == {"Knee"}


def test_samples_from_lists_of_files_and_folders(tmp_path: Path) -> None:
    touch(tmp_path, "x/9.png", "y/1.png", "y/2.png")
    samples = folder_samples([tmp_path / "x/9.png", tmp_path / "y", tmp_path / "y/1.png"])
    assert [s.path.name for s in samples] == ["9.png", "1.png", "2.png"]


def test_impossible_samples(tmp_path: Path) -> None:
    touch(tmp_path, "ok/1.png", "masks/1.png")
    with pytest.raises(InputError, match="normal and as abnormal"):
        folder_samples(tmp_path / "ok", [tmp_path / "ok/1.png"])
    with pytest.raises(InputError, match="masks need abnormal"):
        folder_samples(tmp_path / "ok", masks=tmp_path / "masks")
    with pytest.raises(InputError, match="two folders"):
        folder_samples(tmp_path / "ok", tmp_path / "masks", tmp_path / "masks")
    with pytest.raises(InputError, match="empty"):
        folder_samples([])


def write_dicom(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(128) + b"DICM" + b"rest")
    return path


def test_dicom_files_are_listed_by_suffix_or_content(tmp_path: Path) -> None:
    for name in ("IM0002", "IM0010", "1.2.840.113619.5", "DICOMDIR", "s.IMA"):
        write_dicom(tmp_path / name)
    touch(tmp_path, "a.dcm", "b.DICOM", "README", "Makefile.2", "volume.nii.gz", "scan.svs")
    (tmp_path / "README").write_bytes(b"DICM but too early")
    names = [path.name for path in list_images(tmp_path)]
    assert names == ["1.2.840.113619.5", "a.dcm", "b.DICOM", "IM0002", "IM0010", "s.IMA"]


def test_pictures_are_listed_by_content_and_unread_ones_are_not_passed_over(tmp_path: Path) -> None:
    """As scoring finds them: else a fit would lose images that a score of the folder shows."""
    touch(tmp_path, "a.png", "notes.txt", "table.csv", "empty")
    (tmp_path / "IM1").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(99))
    (tmp_path / "photo.img").write_bytes(b"\xff\xd8\xff" + bytes(99))
    (tmp_path / "old.gif").write_bytes(b"GIF89a" + bytes(99))
    (tmp_path / "folder.gif").mkdir()
    names = [path.name for path in list_images(tmp_path)]
    assert names == ["a.png", "IM1", "old.gif", "photo.img"]
    (tmp_path / "notes.txt").rename(tmp_path / "folder.gif" / "notes.txt")
    with pytest.raises(InputError, match=r"Looked for pictures \(\.png .*\) and DICOM"):
        list_images(tmp_path / "folder.gif")


def test_masks_are_pictures_only(tmp_path: Path) -> None:
    images = [write_dicom(tmp_path / "img/a.dcm")]
    write_dicom(tmp_path / "mask/a.dcm")
    with pytest.raises(InputError, match=r"no images in this folder\. Looked for \.png"):
        match_masks(images, tmp_path / "mask")
    touch(tmp_path, "mask/a.png")
    assert match_masks(images, tmp_path / "mask") == {images[0]: tmp_path / "mask/a.png"}


def test_pairs_name_all_that_does_not_fit(tmp_path: Path) -> None:
    a, b, c, twin, other = (
        Path(f"img/{n}") for n in ("a.png", "b.png", "c.png", "p/t.png", "t.png")
    )
    masks = [Path(f"mask/{n}") for n in ("a.png", "c.png", "c_mask.png", "t.png", "z.png")]
    pairs = pair_masks([a, b, c, twin, other], masks)
    assert pairs.matched == {a: masks[0]}
    assert pairs.unmatched == [b]
    assert pairs.ambiguous == {c: masks[1:3], twin: [masks[3]], other: [masks[3]]}
    assert pairs.orphans == [masks[4]]


@pytest.mark.parametrize(
    ("image", "mask"),
    [
        ("1.2.840.10", "1.2.840.10.png"),
        ("1.2.840.10", "1.2.840.10_mask.png"),
        ("1.2.840.10.dcm", "1.2.840.10.png"),
        ("scan.nii.gz", "scan.png"),
        ("scan.v2.NII.GZ", "scan.v2-mask.tif"),
        ("slide.1.svs", "slide.1.png"),
    ],
)
def test_names_with_dots_have_masks(image: str, mask: str) -> None:
    images, masks = [Path("1.2.840.11"), Path(image)], [Path("1.2.840.png"), Path(mask)]
    pairs = pair_masks(images, masks)
    assert (pairs.matched, pairs.orphans) == ({images[1]: masks[1]}, masks[:1])


@pytest.mark.parametrize("copy", ["normal/z.png", "abnormal/z.png"])
def test_a_copy_under_another_name_is_refused(copy: str, tmp_path: Path) -> None:
    for name, content in {"normal/a.png": b"one", "abnormal/b.png": b"two", copy: b"one"}.items():
        touch(tmp_path, name)[0].write_bytes(content)
    with pytest.raises(InputError, match=rf"{copy} and .*normal/a\.png are the same image"):
        folder_samples(tmp_path / "normal", tmp_path / "abnormal")


@pytest.mark.parametrize("inside", ["abnormal", "Ungood/img", "masks", "Ungood/anomaly_mask"])
def test_a_folder_of_everything_is_not_a_folder_of_normal_images(
    tmp_path: Path, inside: str
) -> None:
    touch(tmp_path, "normal/a.png", f"{inside}/b.png")
    wrong = inside.partition("/")[0]
    with pytest.raises(InputError, match=rf"{wrong}/ would count as normal.*such as .*normal"):
        folder_samples(tmp_path)
    assert len(folder_samples(tmp_path / "normal")) == 1


def test_masks_among_the_abnormal_images_are_masks_or_refused(tmp_path: Path) -> None:
    touch(tmp_path, "ok/n.png", "bad/a.png", "bad/masks/a.png")
    with pytest.raises(InputError, match="masks/ would count as abnormal"):
        folder_samples(tmp_path / "ok", tmp_path / "bad")
    samples = folder_samples(tmp_path / "ok", tmp_path / "bad", tmp_path / "bad" / "masks")
    assert [sample.mask is not None for sample in samples] == [False, True]


def test_folders_above_the_one_that_is_named_may_be_called_anything(tmp_path: Path) -> None:
    touch(tmp_path, "masks/label/normal/patient-1/a.png")
    assert len(folder_samples(tmp_path / "masks/label/normal")) == 1


@pytest.mark.parametrize(
    "mask", ["a_mask.png", "a-mask.jpg", "more/a_mask.png", "a_mask_1.png", "a-mask2.png"]
)
@pytest.mark.parametrize("kind", ["ok", "bad"])
def test_masks_beside_their_images_are_not_images(tmp_path: Path, kind: str, mask: str) -> None:
    """As BUSI has them; nothing but the name tells."""
    touch(tmp_path, "ok/a.png", "bad/a.png", "bad/b_mask.png", f"{kind}/{mask}")
    where = rf"{kind}/{mask}: looks like the mask of a\.png\. Move masks .* --masks"
    with pytest.raises(InputError, match=where):
        folder_samples(tmp_path / "ok", tmp_path / "bad")
    (tmp_path / kind / mask).unlink()
    samples = folder_samples(tmp_path / "ok", tmp_path / "bad")
    assert [s.path.name for s in samples] == ["a.png", "a.png", "b_mask.png"]
