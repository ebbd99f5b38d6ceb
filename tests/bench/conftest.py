import pytest

from recap.data import write_phantoms
from recap.methods.registry import resolve_settings


@pytest.fixture(scope="module")
def domains(tmp_path_factory):
    """Two small data sets to run cells on."""
    root = tmp_path_factory.mktemp("phantoms")
    return write_phantoms(root, pool=3, test=3, size_px=70, domains=["Brain", "Chest"])


@pytest.fixture(scope="module")
def settings(tiny_folder):
    """The quickest fit there is."""
    encoder = {"name": str(tiny_folder), "input_px": 70}
    return resolve_settings(encoder=encoder, training={"epochs": 1, "augment": False})
