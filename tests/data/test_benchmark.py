import errno
import os
from pathlib import Path

import pytest

from recap.data.benchmark import PAPER_NAMES, find_domains, read_domain
from recap.errors import InputError
from recap.types import Sample


def touch(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def write_domain(root: Path, masks: str | None = "anomaly_mask", img: str = "img/") -> Path:
    for split in ("valid", "test"):
        touch(root / split, f"good/{img}2.png", f"good/{img}10.png", f"Ungood/{img}a.png")
        if masks:
            touch(root / split, f"Ungood/{masks}/a.png")
    return root


@pytest.mark.parametrize("masks", ["anomaly_mask", "label"])
@pytest.mark.parametrize("img", ["img/", ""])
def test_layouts(tmp_path: Path, masks: str, img: str) -> None:
    domain = read_domain(write_domain(tmp_path / "Knee_AD", masks, img))
    assert domain.name == "Knee"
    for split, samples in (("valid", domain.pool()), ("test", domain.test())):
        folder = tmp_path / "Knee_AD" / split
        assert samples == [
            Sample(folder / f"good/{img}2.png", False, None, "Knee"),
            Sample(folder / f"good/{img}10.png", False, None, "Knee"),
            Sample(folder / f"Ungood/{img}a.png", True, folder / f"Ungood/{masks}/a.png", "Knee"),
        ]


def test_no_mask_folder_means_no_masks(tmp_path: Path) -> None:
    samples = read_domain(write_domain(tmp_path / "Brain", masks=None)).test()
    assert samples[-1].mask is None


def test_incomplete_masks(tmp_path: Path) -> None:
    domain = read_domain(write_domain(tmp_path / "Brain_AD"))
    touch(tmp_path, "Brain_AD/test/Ungood/img/b.png")
    with pytest.raises(InputError, match=r"1 of 2 images \(b\.png\)"):
        domain.test()
    touch(tmp_path, "Brain_AD/test/Ungood/label/b.png")
    with pytest.raises(InputError, match="several mask folders"):
        domain.test()


def test_what_is_not_a_domain(tmp_path: Path) -> None:
    (tmp_path / "Brain_AD/test/good/img").mkdir(parents=True)
    with pytest.raises(InputError, match="Ungood/anomaly_mask"):
        read_domain(tmp_path / "Brain_AD").test()
    with pytest.raises(InputError, match="Ungood/anomaly_mask"):
        read_domain(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        read_domain(tmp_path / "none")


def test_find_domains_in_the_papers_order(tmp_path: Path) -> None:
    for name in ("Zebra_AD", "Knee", *reversed([f"{name}_AD" for name in PAPER_NAMES])):
        write_domain(tmp_path / name)
    (tmp_path / "notes").mkdir()
    assert [d.name for d in find_domains(tmp_path)] == [*PAPER_NAMES, "Knee", "Zebra"]
    assert [d.name for d in find_domains(tmp_path / "Brain_AD")] == ["Brain"]
    write_domain(tmp_path / "Brain")
    with pytest.raises(InputError, match="more than one folder for Brain"):
        find_domains(tmp_path)


def test_find_domains_leaves_nothing_out_silently(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no domains"):
        find_domains(tmp_path)
    write_domain(tmp_path / "Brain_AD")
    (tmp_path / "Liver_AD").mkdir()
    with pytest.raises(InputError, match="Liver_AD"):
        find_domains(tmp_path)


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of folders that nobody may look into; tests may run as root, who may."""
    names: set[str] = set()
    really = Path.stat

    def stat(path: Path, **options: bool) -> os.stat_result:
        if names.intersection(path.parent.parts):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return really(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    return names


def test_a_folder_without_permission_is_no_domain(tmp_path: Path, locked: set[str]) -> None:
    write_domain(tmp_path / "Brain_AD")
    (tmp_path / "lost+found").mkdir()
    locked.add("lost+found")
    assert [domain.name for domain in find_domains(tmp_path)] == ["Brain"]
    (tmp_path / "Liver_AD").mkdir()
    locked.add("Liver_AD")
    with pytest.raises(InputError, match=r"Liver_AD: this folder cannot be read \(Permission den"):
        find_domains(tmp_path)


def test_bmad_layout_with_flat_train_folder(tmp_path: Path) -> None:
    root = write_domain(tmp_path / "Brain", "label")
    touch(root, "train/good/00003_61.png", "train/good/00003_7.png", "test/good/label/2.png")
    domain = read_domain(root)
    assert [s.path.name for s in domain.train()] == ["00003_7.png", "00003_61.png"]
    assert not any(s.abnormal for s in domain.train())
    assert len(domain.test()) == 3
    touch(root, "train/good/img/1.png")
    assert [s.path.name for s in domain.train()] == ["1.png"]


def test_no_train_split_is_empty(tmp_path: Path) -> None:
    assert read_domain(write_domain(tmp_path / "Brain_AD")).train() == []


def test_dicom_in_the_benchmark_layout(tmp_path: Path) -> None:
    touch(tmp_path, "Knee_AD/test/good/img/a.dcm", "Knee_AD/test/Ungood/img/b.dcm")
    touch(tmp_path, "Knee_AD/test/Ungood/label/b.png")
    assert [s.path.name for s in read_domain(tmp_path / "Knee_AD").test()] == ["a.dcm", "b.dcm"]


def test_plain_folders_are_all_pool(tmp_path: Path) -> None:
    touch(tmp_path / "Knee", "normal/p1/1.png", "normal/2.png", "abnormal/3.png")
    domain = read_domain(tmp_path / "Knee")
    assert (domain.name, domain.layout) == ("Knee", "folders")
    assert [(s.path.name, s.abnormal, s.mask) for s in domain.pool()] == [
        ("2.png", False, None),
        ("1.png", False, None),
        ("3.png", True, None),
    ]
    touch(tmp_path / "Knee", "masks/3_mask.png")
    assert domain.pool()[-1] == Sample(
        tmp_path / "Knee/abnormal/3.png", True, tmp_path / "Knee/masks/3_mask.png", "Knee"
    )
    assert domain.train() == []
    with pytest.raises(InputError, match=r"no test split.*manifest with a split column"):
        domain.test()


@pytest.mark.parametrize("kind", ["normal", "abnormal"])
def test_masks_beside_the_images_of_plain_folders(tmp_path: Path, kind: str) -> None:
    touch(tmp_path / "Knee", "normal/1.png", "abnormal/1.png", f"{kind}/1_mask.png")
    where = rf"{kind}/1_mask\.png: looks like the mask of 1\.png\. Move masks to .*Knee/masks\."
    with pytest.raises(InputError, match=where):
        read_domain(tmp_path / "Knee").pool()


@pytest.mark.parametrize(
    ("inside", "kind"),
    [
        ("abnormal/masks", "abnormal"),
        ("abnormal/p1/Label", "abnormal"),
        ("normal/Ungood", "normal"),
    ],
)
def test_plain_folders_hold_no_folder_of_another_kind(
    tmp_path: Path, inside: str, kind: str
) -> None:
    touch(tmp_path / "Knee", "normal/1.png", "abnormal/2.png", f"{inside}/3.png")
    where = rf"{inside}: its images would count as {kind}\. Move it out of .*Knee/{kind}\."
    with pytest.raises(InputError, match=where):
        read_domain(tmp_path / "Knee").pool()


def test_masks_beside_the_images_of_a_benchmark(tmp_path: Path) -> None:
    domain = read_domain(write_domain(tmp_path / "Knee_AD", masks=None))
    touch(tmp_path, "Knee_AD/test/Ungood/img/a_mask.png")
    with pytest.raises(InputError, match=r"mask of a\.png\. .*Knee_AD/test/Ungood/anomaly_mask\."):
        domain.test()


def test_empty_plain_folders(tmp_path: Path) -> None:
    (tmp_path / "Knee/normal").mkdir(parents=True)
    with pytest.raises(InputError, match="no images of the pool split of Knee"):
        read_domain(tmp_path / "Knee").pool()


def test_a_manifest_is_a_domain(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", "b.png")
    file = tmp_path / "knee.csv"
    file.write_text("path,label,split\na.png,normal,\nb.png,abnormal,test\n")
    domain = read_domain(file)
    assert (domain.name, domain.root, domain.layout) == ("knee", file, "manifest")
    assert domain.pool() == [Sample(tmp_path / "a.png", False, domain="knee")]
    assert domain.test() == [Sample(tmp_path / "b.png", True, domain="knee")]
    assert domain.train() == []
    assert find_domains(file) == [domain]
    with pytest.raises(InputError, match="not a data set"):
        find_domains(tmp_path / "a.png")


def test_errors_are_one_line(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none", *[tmp_path / "x_AD"]):
        with pytest.raises(InputError) as caught:
            read_domain(path)
        assert "\n" not in str(caught.value)


def shared_data() -> Path | None:
    beside = Path(__file__).resolve().parents[3] / "shared"
    root = Path(os.environ.get("RECAP_SHARED", beside)) / "data"
    return root if root.is_dir() else None


@pytest.mark.skipif(shared_data() is None, reason="no benchmark data: set RECAP_SHARED")
def test_real_data() -> None:
    root = shared_data()
    assert root is not None
    domains = {domain.name: domain for domain in find_domains(root)}
    brain = domains["Brain"]
    assert [sum(s.abnormal for s in split) for split in (brain.pool(), brain.test())] == [80, 260]
    assert all(sample.mask for sample in brain.test() if sample.abnormal)
    assert not any(sample.mask for sample in domains["Retina_OCT2017"].test())
