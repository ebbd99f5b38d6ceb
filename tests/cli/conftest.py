"""What commands are tried on: phantoms and the tiny encoder."""

from pathlib import Path

import pytest

from own_process import command  # noqa: F401
from quick_encoder import encoder_read_once  # noqa: F401
from recap.data import write_phantoms
from recap.data.benchmark import Domain


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> list[str]:
    """Options for one epoch on the tiny encoder."""
    values = ["encoder.input_px=70", "training.epochs=1", "training.augment=false"]
    return ["--encoder", str(tiny_folder), *(part for v in values for part in ("--set", v))]


@pytest.fixture(scope="session")
def domains(tmp_path_factory: pytest.TempPathFactory) -> list[Domain]:
    root = tmp_path_factory.mktemp("phantoms")
    return write_phantoms(root, pool=3, test=2, size_px=70, domains=["Brain", "Chest"])


@pytest.fixture(scope="session")
def brain_folders(domains: list[Domain]) -> list[str]:
    """--normal, --abnormal and --masks of the Brain pool."""
    valid = domains[0].root / "valid"
    options = {"normal": "good/img", "abnormal": "Ungood/img", "masks": "Ungood/anomaly_mask"}
    return [part for k, v in options.items() for part in (f"--{k}", str(valid / v))]


@pytest.fixture(scope="session")
def bundle(
    tmp_path_factory: pytest.TempPathFactory, domains: list[Domain], tiny_folder: Path
) -> Path:
    """A detector fitted on the normal images of the Brain pool; not to be changed."""
    import recap

    settings = recap.resolve_settings(encoder={"name": str(tiny_folder), "input_px": 70})
    path = tmp_path_factory.mktemp("bundle") / "brain.recap"
    recap.fit(domains[0].root / "valid" / "good", settings=settings).save(path)
    return path
