import hashlib
from pathlib import Path

import pytest

from recap.data.benchmark import Domain
from recap.data.supports import Support, draw_support, read_support, support_hashes, write_support
from recap.errors import InputError, SettingsError


@pytest.fixture
def domain(tmp_path: Path) -> Domain:
    root = tmp_path / "Brain_AD"
    for label, masks in (("good", None), ("Ungood", "anomaly_mask")):
        for folder in filter(None, ("img", masks)):
            path = root / "valid" / label / folder
            path.mkdir(parents=True)
            for i in range(12):
                (path / f"{label[0]}{i}.png").write_bytes(f"{folder}{i}".encode())
    return Domain("Brain", root)


def names(support: Support) -> tuple[list[str], list[str]]:
    return [s.path.name for s in support.normal], [s.path.name for s in support.abnormal]


@pytest.mark.parametrize(
    "text",
    [
        "n-0: g7.png g2.png\na-0: U11.png U3.png",
        "a-0: U11.png  U3.png \nn-0: g7.png g2.png\n",
        "\r\nn-0:g7.png g2.png\r\na-0: U11.png U3.png\r\n",
    ],
)
def test_published_lists_keep_their_order(domain: Domain, tmp_path: Path, text: str) -> None:
    (tmp_path / "2-shot.txt").write_bytes(text.encode())
    support = read_support(domain, tmp_path / "2-shot.txt")
    assert names(support) == (["g7.png", "g2.png"], ["U11.png", "U3.png"])
    assert all(not s.abnormal for s in support.normal)
    assert support.abnormal[0].mask == domain.root / "valid/Ungood/anomaly_mask/U11.png"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("n-0: g1.png gone.png\na-0: U1.png", r"gone\.png"),
        ("n-0: U1.png\na-0: U1.png", r"not in the pool"),
        ("n-0: g1.png", "a-0"),
        ("n-0: g1.png\na-0: U1.png\nn-0: g2.png", "unexpected line"),
        ("g1.png\nU1.png", "unexpected line"),
        ("n-0: g1.png g1.png\na-0: U1.png", "twice"),
    ],
)
def test_wrong_lists(domain: Domain, tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(InputError, match=reason) as caught:
        read_support(domain, tmp_path / "list.txt")
    assert "list.txt" in str(caught.value)


def test_missing_list(domain: Domain, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.txt"):
        read_support(domain, tmp_path / "none.txt")


def test_draws_are_fixed_nested_and_differ(domain: Domain) -> None:
    # Ranked by hand: sha256sum of "0:g0.png" and so on.
    ranked = sorted(range(12), key=lambda i: hashlib.sha256(f"0:g{i}.png".encode()).hexdigest())
    four = names(draw_support(domain, 4))
    assert four[0] == [f"g{i}.png" for i in ranked[:4]]
    assert four == names(draw_support(domain, 4))
    assert names(draw_support(domain, 2)) == (four[0][:2], four[1][:2])
    assert names(draw_support(domain, 4, draw=1)) != four
    assert len({*names(draw_support(domain, 12))[1]}) == 12


def test_impossible_draws(domain: Domain) -> None:
    with pytest.raises(InputError, match="12 normal images, fewer than the 13"):
        draw_support(domain, 13)
    with pytest.raises(SettingsError, match="not 0"):
        draw_support(domain, 0)


def test_written_lists_read_back(domain: Domain, tmp_path: Path) -> None:
    support = draw_support(domain, 3, draw=5)
    write_support(support, tmp_path / "deep/3-shot.txt")
    assert read_support(domain, tmp_path / "deep/3-shot.txt") == support


def test_names_with_spaces_cannot_be_listed(domain: Domain, tmp_path: Path) -> None:
    (domain.root / "valid/good/img/g 1.png").touch()
    with pytest.raises(InputError, match=r"g 1\.png"):
        write_support(Support(tuple(domain.pool()), ()), tmp_path / "list.txt")


def test_hashes(domain: Domain) -> None:
    support = draw_support(domain, 1)
    (record,) = support_hashes(support.abnormal)
    number = support.abnormal[0].path.stem.removeprefix("U")
    assert record == {
        "name": f"U{number}.png",
        "label": "abnormal",
        "sha256": hashlib.sha256(f"img{number}".encode()).hexdigest(),
        "mask_sha256": hashlib.sha256(f"anomaly_mask{number}".encode()).hexdigest(),
    }
    assert support_hashes(support.normal)[0]["mask_sha256"] is None
