import hashlib

import pytest

from recap._download import sha256_of
from recap.data import read_domain, write_phantoms
from recap.data.supports import entry_of, read_exclusions
from recap.errors import InputError


@pytest.fixture(scope="module")
def domain(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    return write_phantoms(root, pool=1, test=2, size_px=32, domains=["Brain"])[0]


@pytest.fixture
def listing(tmp_path):
    def write(*lines):
        file = tmp_path / "exclude.txt"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return read_exclusions(file)

    return write


def test_listed_images_are_dropped(domain, listing):
    samples = domain.test()
    exclusions = listing("# why", "", entry_of(samples[1].path, domain), "Liver_AD/test/gone.png")
    assert entry_of(samples[1].path, domain) == "Brain_AD/test/good/img/test_001.png"
    assert exclusions.keep(samples, domain) == [samples[0], *samples[2:]]


def test_the_list_is_identified_by_its_digest(listing):
    exclusions = listing("Brain/test/good/img/a.png")
    assert exclusions.sha256 == hashlib.sha256(b"Brain/test/good/img/a.png\n").hexdigest()


def test_folder_name_or_domain_name(domain, listing):
    exclusions = listing("Brain/test/good/img/test_000.png")
    assert len(exclusions.keep(domain.test(), domain)) == 3


def test_from_another_working_folder(domain, listing, monkeypatch):
    exclusions = listing("Brain/test/good/img/test_000.png")
    monkeypatch.chdir(domain.root.parent)
    here = read_domain("Brain_AD")
    assert len(exclusions.keep(here.test(), here)) == 3


def test_an_entry_that_fits_nothing_is_named(domain, listing):
    exclusions = listing("Brain_AD/test/good/img/test_000.png", "Brain_AD/test/good/img/old.png")
    with pytest.raises(InputError, match=r"'test/good/img/old\.png' is not in the test split of"):
        exclusions.keep(domain.test(), domain)


def test_digests_are_checked_where_given(domain, listing):
    path = domain.test()[0].path
    entry = entry_of(path, domain)
    assert len(listing(f"{entry}\t{sha256_of(path)}").keep(domain.test(), domain)) == 3
    with pytest.raises(InputError, match=r"test_000\.png: is not the file that .* was made for"):
        listing(f"{entry}\t{'0' * 64}").keep(domain.test(), domain)


def test_a_class_must_not_vanish(domain, listing):
    exclusions = listing(*(f"Brain_AD/test/good/img/test_{n:03d}.png" for n in range(2)))
    with pytest.raises(InputError, match="leaves no normal test images of Brain"):
        exclusions.keep(domain.test(), domain)


def test_a_line_that_is_no_path(listing):
    with pytest.raises(InputError, match=r"line 2 is 'img_001\.png'"):
        listing("# reason", "img_001.png")


def test_no_such_list(tmp_path):
    with pytest.raises(InputError, match=r"nothing\.txt: the exclusion list cannot be read"):
        read_exclusions(tmp_path / "nothing.txt")


def test_entries_of_no_data_set_here_are_told(tmp_path, listing):
    """Those of a neighbour are no mistake: a list may be for several domains."""
    domain, *_ = write_phantoms(
        tmp_path / "data", pool=1, test=1, size_px=32, domains=["Brain", "Liver"]
    )
    (tmp_path / "data" / "knee.csv").write_text("path,label\n")
    good = ["Brain_AD/test/good/img/test_000.png", "Liver/test/x.png", "knee/x.png"]
    wrong = [
        "foo/bar.png",
        "test/good/img/test_000.png",
        "./Brain_AD/a.png",
        "/data/Brain_AD/b.png",
    ]
    assert listing(*good, *wrong).unmatched(domain) == wrong
    assert listing(*good).unmatched(domain) == []
