"""`recap bench ablate recipe`: what a preset changes, taken back part by part."""

import pytest

from recap.bench.studies import plan_study, reference_of, variants_of
from recap.errors import SettingsError
from recap.methods.recap.settings import RecapSettings
from recap.methods.registry import resolve_settings


@pytest.mark.parametrize("preset", ["recap", "paper"])
def test_each_part_is_taken_back_alone_and_then_all(preset):
    settings = resolve_settings(preset, seed=3)
    variants = variants_of("recipe", settings)
    assert next(iter(variants)) == reference_of("recipe", settings) == "all of it"
    assert variants.pop("all of it") == settings
    assert variants.pop("none of it") == RecapSettings(seed=3) == resolve_settings("fast", seed=3)
    for label, own in variants.items():
        section, _, rest = label.partition(".")
        key, _, value = rest.partition(" = ")
        assert str(getattr(getattr(own, section), key)) == {"none": "None"}.get(value, value)
        back = own.model_copy(
            update={
                section: getattr(own, section).model_copy(
                    update={key: getattr(getattr(settings, section), key)}
                )
            }
        )
        assert back == settings
    assert len(variants) == {"recap": 12, "paper": 4}[preset]


def test_a_recipe_of_nothing_is_told():
    with pytest.raises(SettingsError, match="change nothing"):
        variants_of("recipe", resolve_settings("fast"))


def test_score_time_parts_share_one_fit_and_pools_are_told_apart():
    settings = resolve_settings("recap")
    pool, test = (
        plan_study("recipe", settings, ["Brain"], [4], [0], on=on) for on in ("pool", "test")
    )
    assert pool.base != test.base
    assert {cell.on for cell in pool.cells} == {"pool"}
    fits = {label: cells[0].fit_name for label, cells in pool.variants.items()}
    assert fits["model.map_blur_px = 0.0"] == fits["all of it"]
    assert fits["model.map_logit_scale = none"] == fits["all of it"]
    assert len(set(fits.values())) == 11  # all of it, eight parts, epochs, none of it
