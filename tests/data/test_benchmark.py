import os
from pathlib import Path

import pytest

from recap.data.benchmark import PAPER_NAMES, find_domains, has_masks, read_domain
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
        assert has_masks(samples)


def test_no_mask_folder_means_no_masks(tmp_path: Path) -> None:
    samples = read_domain(write_domain(tmp_path / "Brain", masks=None)).test()
    assert samples[-1].mask is None
    assert not has_masks(samples)
    assert not has_masks(samples[:1])


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
    assert has_masks(brain.test())
    assert not has_masks(domains["Retina_OCT2017"].test())
