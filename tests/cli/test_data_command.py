from pathlib import Path

from recap.data import find_domains
from recap.data.phantom.write import PHANTOMS


def test_phantoms_in_the_benchmark_layout(command, tmp_path):
    root = tmp_path / "phantoms"
    options = ["--pool", 2, "--test", 1, "--seed", 5, "--size", 48]
    result = command("data", "phantom", root, *options)
    assert result.code == 0
    assert [Path(line).name for line in result.out.splitlines()] == [f"{n}_AD" for n in PHANTOMS]
    assert "Drawing: 36/36" in result.err
    domains = find_domains(root)
    assert [domain.name for domain in domains] == list(PHANTOMS)
    assert all((len(d.pool()), len(d.test())) == (4, 2) for d in domains)
    command("data", "phantom", tmp_path / "again", *options)
    for path in root.rglob("*.png"):
        assert path.read_bytes() == (tmp_path / "again" / path.relative_to(root)).read_bytes()


def test_existing_domains_are_not_overwritten(command, tmp_path):
    (tmp_path / "Brain_AD").mkdir()
    result = command("data", "phantom", tmp_path, "--pool", 1, "--test", 1, "--size", 32)
    assert result.code == 2
    assert "exists already" in result.err
    assert list((tmp_path / "Brain_AD").iterdir()) == []


def test_impossible_numbers_are_usage_errors(command, tmp_path):
    assert command("data", "phantom", tmp_path, "--pool", 0).code == 2
    assert command("data", "phantom", tmp_path, "--size", 8).code == 2
