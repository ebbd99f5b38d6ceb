"""Codes of errors, and what shells and HTTP clients get for them."""

import errno
import pickle
from pathlib import Path

import pytest

from recap.errors import (
    CODES,
    EXIT_CODES,
    HTTP_STATUSES,
    BundleError,
    InputError,
    OtherFitError,
    RecapError,
    SettingsError,
    code_of,
    is_full,
)


def test_every_code_has_its_exit_and_its_status():
    assert EXIT_CODES.keys() == HTTP_STATUSES.keys() == set(CODES)
    assert all(0 < code < 128 for code in EXIT_CODES.values())
    assert all(400 <= status < 600 for status in HTTP_STATUSES.values())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RecapError("no"), "failed"),
        (InputError("no"), "input"),
        (SettingsError("no"), "settings"),
        (OtherFitError("no"), "training"),
        (InputError("no", code="too_large"), "too_large"),
        (MemoryError(), "no_memory"),
        (OSError(errno.ENOSPC, "full"), "no_room"),
        (OSError(errno.EDQUOT, "full"), "no_room"),
        (PermissionError(errno.EACCES, "no"), "input"),
        (KeyError("x"), "defect"),
    ],
)
def test_every_error_has_a_code(error, code):
    assert code_of(error) == code
    assert is_full(error) == (code == "no_room")


def test_a_full_disk_is_one_whatever_was_made_of_it():
    error = BundleError("brain.recap: cannot be written.")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert (error.code, code_of(error)) == ("bundle", "no_room")


def test_what_to_do_stands_behind_what_was_wrong():
    error = InputError("a.png: it is empty.", path=Path("a.png"), remedy="Copy it again.")
    assert str(error) == "a.png: it is empty. Copy it again."
    assert (error.path, error.remedy, error.reason) == (
        "a.png",
        "Copy it again.",
        "it is empty. Copy it again.",
    )


def test_fields_travel_between_processes():
    error = InputError("a.png: too large.", code="too_large", path="a.png", remedy="Crop it.")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.code, again.path) == (str(error), "too_large", "a.png")


def test_a_class_of_another_package_brings_its_code():
    class FullError(InputError, code="no_room"):
        pass

    assert FullError("no").code == "no_room"
    assert InputError("no").code == "input"
