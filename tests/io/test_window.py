"""Which values become black and white."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from recap.errors import SettingsError
from recap.io.window import apply_window, own_window, parse_window

FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize(
    ("setting", "ends"),
    [
        ("file", None),
        ("abdomen", (-160, 240)),
        ("lung", (-1350, 150)),
        ("brain", (0, 80)),
        ("bone", (-500, 1300)),
        ("-160,240", (-160, 240)),
        (" -1.5e3 , 0.25 ", (-1500, 0.25)),
    ],
)
def test_windows_by_name_and_by_numbers(setting, ends):
    assert parse_window(setting) == ends


@pytest.mark.parametrize(
    "setting",
    ["", "liver", "Abdomen", "1", "1,2,3", "2,1", "1,1", "0,nan", "-inf,0", "0,1e999", "a,b", ",",
     "-1e308,1.7e308"],
)  # fmt: skip
def test_what_is_no_window_is_named_with_those_that_are(setting):
    with pytest.raises(SettingsError) as error:
        parse_window(setting)
    assert f"'{setting}'" in str(error.value)
    assert "file, abdomen, lung, brain, bone" in str(error.value)
    assert "-160,240" in str(error.value)


def test_a_window_without_width_is_a_threshold():
    assert apply_window(np.array([1, 2, 3]), (2, 2)).tolist() == [0, 0, 1]


def test_values_between_the_ends_are_spread_evenly():
    values = np.array([[-500, -160, -60], [40, 240, 3000]], np.int16)
    assert apply_window(values, (-160, 240)).tolist() == [[0, 0, 0.25], [0.5, 1, 1]]
    assert apply_window(values, (-160, 240)).dtype == np.float32


@given(arrays(np.float32, (7,), elements=FLOAT32), FLOAT32, FLOAT32)
def test_any_window_shows_any_values_in_order(values, one, other):
    if one == other:
        return
    window = (min(one, other), max(one, other))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unit = apply_window(values, window)
    assert ((unit >= 0) & (unit <= 1)).all()
    assert (np.diff(unit[np.argsort(values)]) >= 0).all()
    assert (unit[values <= window[0]] == 0).all()
    assert (unit[values >= window[1]] == 1).all()


def test_the_own_range_leaves_out_the_rarest_values():
    values = np.arange(1001, dtype=np.float32)
    assert own_window(values) == pytest.approx((5, 995))
    values[0], values[-1] = -1e6, 1e6
    assert own_window(values) == pytest.approx((5, 995))


def test_a_speck_on_nothing_is_still_seen():
    values = np.zeros((100, 100), np.float32)
    values[3, 4] = 7
    assert own_window(values) == (0, 7)


@given(arrays(np.float32, (5,), elements=FLOAT32))
def test_the_own_range_is_always_a_window(values):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        low, high = own_window(values)
        unit = apply_window(values, (low, high))
    assert np.isfinite([low, high]).all()
    assert low < high
    assert np.isfinite(unit).all()
    if len(set(values)) == 1:
        assert (unit == 0).all()


@pytest.mark.parametrize("value", [0.0, -3.0, 7e37, -7e37, 1e20])
def test_one_value_everywhere_is_black(value):
    values = np.full((2, 2), value, np.float32)
    assert (apply_window(values, own_window(values)) == 0).all()
