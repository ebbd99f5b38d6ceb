from pathlib import Path

import numpy as np
import pytest

from recap.data.benchmark import PAPER_NAMES, find_domains
from recap.data.phantom import PHANTOMS, phantom, write_phantoms
from recap.errors import InputError, SettingsError
from recap.io import read_image, read_mask
from recap.progress import Progress, silent


def contents(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*.png")}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("phantoms")
    write_phantoms(root, pool=2, test=3, size_px=64)
    return root


def test_layout(written: Path) -> None:
    domains = find_domains(written)
    assert [d.name for d in domains] == list(PAPER_NAMES) == list(PHANTOMS)
    for domain in domains:
        assert [s.abnormal for s in domain.pool()] == [False] * 2 + [True] * 2
        test = domain.test()
        assert [s.abnormal for s in test] == [False] * 3 + [True] * 3
        masked = domain.name in ("Brain", "Liver", "Retina_RESC")
        assert [s.mask is not None for s in test] == [False] * 3 + [masked] * 3
        for sample in test:
            image = read_image(sample.path)
            assert image.pixels.ndim == (3 if domain.name == "Histopathology" else 2)
            assert image.size_hw == (64, 64)
            if sample.mask:
                assert 0 < read_mask(sample.mask).mean() < 0.3


def test_all_images_differ(written: Path) -> None:
    images = [content for name, content in contents(written).items() if "/img/" in name]
    assert len(images) == 6 * 10
    assert len(set(images)) == len(images)


def test_an_image_depends_on_seed_and_place_only(written: Path, tmp_path: Path) -> None:
    write_phantoms(tmp_path / "a", pool=1, test=1, size_px=64, domains=["Chest", "Liver"])
    again = contents(tmp_path / "a")
    full = contents(written)
    assert len(again) == 10
    assert all(full[name] == content for name, content in again.items())
    write_phantoms(tmp_path / "b", seed=1, pool=1, test=1, size_px=64, domains=["Liver"])
    other = contents(tmp_path / "b")
    assert all(full[name] != content for name, content in other.items())


@pytest.mark.parametrize("name", PHANTOMS)
def test_lesions_show_where_the_mask_says(name: str) -> None:
    contrasts = []
    for number in range(6):
        pixels, mask = phantom(name, np.random.default_rng(number), abnormal=True, size_px=96)
        assert pixels.dtype == np.uint8
        assert mask.any()
        grey = pixels if pixels.ndim == 2 else pixels.mean(axis=2)
        ring = np.zeros_like(mask)
        ys, xs = np.nonzero(mask)
        for dy, dx in ((-4, 0), (4, 0), (0, -4), (0, 4)):
            ring[np.clip(ys + dy, 0, 95), np.clip(xs + dx, 0, 95)] = True
        ring &= ~mask
        contrasts.append(abs(grey[mask].mean() - grey[ring].mean()))
    assert np.median(contrasts) > 5
    healthy, nothing = phantom(name, np.random.default_rng(0), abnormal=False, size_px=96)
    assert healthy.std() > 10
    assert not nothing.any()


def test_impossible_phantoms(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"'Knee'.*Brain"):
        phantom("Knee", np.random.default_rng(0), abnormal=False)
    with pytest.raises(SettingsError, match="pool=0"):
        write_phantoms(tmp_path, pool=0)
    write_phantoms(tmp_path, pool=1, test=1, size_px=32, domains=["Brain"])
    with pytest.raises(InputError, match="exists already"):
        write_phantoms(tmp_path, pool=1, test=1, size_px=32, domains=["Brain"])


@pytest.mark.parametrize("killed", [False, True])
def test_a_stopped_run_can_be_repeated(
    written: Path, tmp_path: Path, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a domain would be refused as one that exists already."""

    def stop(stage: str, done: int, total: int, detail: str) -> None:
        if detail.startswith("Retina_RESC_AD/test"):
            raise KeyboardInterrupt

    def write(progress: Progress = silent) -> None:
        write_phantoms(tmp_path, pool=2, test=3, size_px=64, progress=progress)

    if killed:  # nothing is cleaned up
        monkeypatch.setattr("recap.data.phantom.write.shutil.rmtree", lambda path: None)
    with pytest.raises(KeyboardInterrupt):
        write(stop)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == [".phantoms.partial"] * killed
    (tmp_path / ".phantoms.partial/Brain_AD/test/good/img").mkdir(parents=True, exist_ok=True)
    (tmp_path / ".phantoms.partial/Brain_AD/test/good/img/test_777.png").touch()
    write()
    assert contents(tmp_path) == contents(written)
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}_AD" for name in PHANTOMS}


def test_nothing_is_drawn_where_a_later_domain_exists(tmp_path: Path) -> None:
    (tmp_path / "Histopathology_AD").mkdir()
    with pytest.raises(InputError, match="Histopathology_AD: exists already"):
        write_phantoms(tmp_path, pool=1, test=1, size_px=32)
    assert [path.name for path in tmp_path.iterdir()] == ["Histopathology_AD"]


def test_every_image_is_a_step(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    write_phantoms(
        tmp_path,
        pool=1,
        test=2,
        size_px=32,
        domains=["Brain"],
        progress=lambda _, done, total, __: steps.append((done, total)),
    )
    assert steps == [(done, 6) for done in range(7)]
