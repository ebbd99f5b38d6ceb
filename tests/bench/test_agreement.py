"""Means over seeds hold one setting, and tables say which one it is."""

from dataclasses import replace

import pytest

from recap.bench.cells import Cell
from recap.bench.compare import study_tables, summarise_grid
from recap.bench.kept import write_result
from recap.bench.notes import Shown, own_notes
from recap.bench.render import render
from recap.bench.results import GRID, register
from recap.bench.table_model import footnotes
from recap.bench.tables import (
    collect,
    few_shot_table,
    own_table,
    paper_tables,
    result_cell,
    zero_shot_table,
)
from recap.errors import InputError
from recap.methods._dra_backbone import RESNET_18
from recap.methods.registry import METHODS, resolve_settings

IMAGES = [
    {"file": f"{i}.png", "abnormal": i % 2 == 1, "patient": "", "score": float(i)} for i in range(4)
]


def result(seed=0, shots=4, method="recap", draw=0, sources=(), exclude="", **sections):
    settings = resolve_settings(method=method, seed=seed, **sections)
    cell = Cell(method, "Brain", shots, settings, draw, exclude, sources=sources)
    return cell, {
        "metrics": {"image_auroc": 0.75},
        "counts": {"normal": 2, "abnormal": 2},
        "images": IMAGES,
    }


def rows(*results):
    return [
        result_cell(cell.method, {"cell": cell.as_json(), **content}) for cell, content in results
    ]


def notes(table):
    return " ".join(text for _, text in footnotes(table))


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (result(1, model={"eta": 0.1}), r"model\.eta: 0\.05 and 0\.1"),
        (result(1, encoder={"input_px": 518}), r"encoder\.input_px: 240 and 518"),
        (result(1, encoder={"name": "dinov2-base"}), r"encoder\.name: dinov2-small and dinov2-b"),
        (result(1, exclude="ab"), r"exclude: none and ab"),
        (result(1, draw=2), r"draw: 0 and 2"),
    ],
)
def test_seeds_that_differ_in_more_are_refused_by_name(other, found):
    mixed = rows(result(0), other)
    with pytest.raises(InputError, match=f"4 shots, seeds 0 and 1, differ in {found}") as refused:
        few_shot_table(mixed, 4)
    assert "--out of its own" in str(refused.value)
    assert "cells/recap/Brain/4-shot" in str(refused.value)
    with pytest.raises(InputError, match=found):
        own_table(mixed)


def test_seeds_on_other_test_images_are_refused():
    fewer = result(1)
    fewer[1]["counts"] = {"normal": 1, "abnormal": 2}
    found = r"differ in test images: 2 abnormal \+ 2 normal and 2 abnormal \+ 1 normal"
    with pytest.raises(InputError, match=found):
        own_table(rows(result(0), fewer))
    pools = [(replace(cell, on="pool"), content) for cell, content in (result(0), fewer)]
    assert own_table(rows(*pools)).rows


def test_two_results_of_one_seed_are_told_apart():
    with pytest.raises(InputError, match=r"Two results for .*, seed 0, differ in model\.eta"):
        few_shot_table(rows(result(0), result(0, model={"eta": 0.1})), 4)


def test_fixed_supports_do_not_mix_with_draws_by_seed():
    by_seed = [result(seed, draw=seed) for seed in range(3)]
    assert "every seed has a support set of its own" in notes(few_shot_table(rows(*by_seed), 4))
    fixed = [result(seed) for seed in range(3)]
    assert "every seed" not in notes(few_shot_table(rows(*fixed), 4))
    with pytest.raises(InputError, match="differ in draw: 0 and 2"):
        few_shot_table(rows(*fixed[:2], by_seed[2]), 4)


def fitted_on(found, *names):
    cell, content = found
    return cell, {**content, "support": {"normal": ["valid/good/a.png"], "abnormal": [*names]}}


def test_support_sets_of_one_draw_do_not_mix():
    """valid/ may change between two runs, which no cell's name tells."""
    old, one, other = result(0), fitted_on(result(1), "b.png"), fitted_on(result(2), "c.png")
    assert own_table(rows(old, one, fitted_on(result(2), "b.png"))).rows  # older ones do not tell
    found = r"seeds 1 and 2, differ in support images: b\.png and c\.png\. A mean holds"
    with pytest.raises(InputError, match=found):
        own_table(rows(old, one, other))
    by_seed = [fitted_on(result(seed, draw=seed), f"{seed}.png") for seed in range(2)]
    assert own_table(rows(*by_seed)).rows


def test_zero_shot_sources_do_not_mix():
    one = result(0, 0, sources=(("Liver", "ab"),))
    other = result(1, 0, sources=(("Liver", "ab"), ("Chest", "cd")))
    with pytest.raises(InputError, match=r"sources: Liver \(ab\) and Liver \(ab\), Chest \(cd\)"):
        zero_shot_table(rows(one, other))
    with pytest.raises(InputError, match=r"sources: Liver \(ab\) and not recorded"):
        zero_shot_table(rows(one, result(1, 0)))


def test_settings_that_are_newer_than_a_result_do_not_part_it_from_others():
    (old, new) = rows(result(0), result(1))
    del old.cell["settings"]["memory"]["score"]
    new.cell["settings"]["memory"]["score"] = "half"  # the default
    assert few_shot_table([old, new], 4).rows


def test_tables_say_what_our_numbers_are_of():
    both = rows(result(0), result(0, method="nearest"))
    for table in (few_shot_table(both, 4), own_table(both)):
        assert "Ours: encoder dinov2-small at 240 px, preset recap." in notes(table)
    large = rows(result(0), result(0, method="nearest", encoder={"input_px": 518}))
    text = notes(own_table(large))
    assert "ReCAP: encoder dinov2-small at 240 px, preset recap; nearest: encoder" in text
    assert not any("Ours:" in notes(table) for table in paper_tables())


def test_an_encoder_of_this_machine_is_named_without_its_place():
    text = notes(own_table(rows(result(0, encoder={"name": "/home/me/tiny"}))))
    assert "encoder tiny at" in text
    assert "/home" not in text


def test_a_method_with_a_backbone_of_its_own_is_said_to_run_on_it():
    assert METHODS["dra"].backbone == RESNET_18
    for encoder in ({}, {"name": RESNET_18}, {"random_weights": True, "name": "/home/me/tiny"}):
        told = notes(own_table(rows(result(method="dra", encoder=encoder))))
        assert f"encoder {RESNET_18}" in told
    other = notes(own_table(rows(result(method="dra", encoder={"name": "/home/me/resnet-50"}))))
    assert "encoder resnet-50 at" in other
    assert "encoder dinov2-small at" in notes(own_table(rows(result(method="patchcore"))))


def test_zero_shot_from_test_splits_is_said_wherever_it_is_shown():
    told = "fitted zero-shot on the test splits of the other data sets, as MVFA does"
    protocol = {"source_split": "test"}
    results = rows(result(0, 0, training=protocol), result(0, 4, training=protocol))
    assert f"ReCAP: {told}" in notes(zero_shot_table(results))
    assert told in notes(own_table(results))
    assert told not in notes(few_shot_table(results, 4))  # few-shot learns from no source
    assert told not in notes(zero_shot_table(rows(result(0, 0))))


def test_comparisons_refuse_what_tables_refuse_and_say_what_tables_say(tmp_path):
    grid = [result(0), result(0, method="nearest")]
    for cell, content in grid:
        write_result(tmp_path, cell, content)
        register(tmp_path, GRID, {cell.method: [cell]})
    found = study_tables(summarise_grid(tmp_path, GRID, ["recap"], "nearest"))
    assert "Ours: encoder dinov2-small at 240 px, preset recap." in render(found, "md")
    again = result(0, model={"eta": 0.1})
    write_result(tmp_path, *again)
    register(tmp_path, GRID, {"recap": [again[0]]})
    refused = []
    for show in (
        lambda: summarise_grid(tmp_path, GRID, ["recap"], "nearest"),
        lambda: own_table(collect(tmp_path).runs),
    ):
        with pytest.raises(InputError, match="Two results for") as error:
            show()
        refused.append(str(error.value).lower().replace("brainmri", "brain"))
    assert refused[0] == refused[1]


def test_comparisons_are_made_where_both_have_results(tmp_path):
    grid = [result(0), result(0, shots=0), result(0, method="nearest")]
    for cell, content in grid:
        write_result(tmp_path, cell, content)
        register(tmp_path, GRID, {cell.method: [cell]})
    found = summarise_grid(tmp_path, GRID, ["recap"], "nearest")
    assert {(row["variant"], row["shots"]) for row in found} == {("recap", 4), ("nearest", 4)}
    alone = result(0, shots=16, method="uniadet")
    write_result(tmp_path, *alone)
    register(tmp_path, GRID, {"uniadet": [alone[0]]})
    with pytest.raises(InputError, match="'uniadet' has no results on a data set and shots on"):
        summarise_grid(tmp_path, GRID, ["recap", "nearest"], "uniadet")


def test_what_must_be_said_of_the_data_stands_below_our_results_too():
    shared = "BrainMRI: In the published benchmark, supports and test images"
    assert shared in notes(own_table(rows(result())))
    assert shared not in notes(own_table(rows(result(shots=0))))
    assert "PRO is the form" not in notes(own_table(rows(result())))


def test_results_without_excluded_images_say_so():
    told = notes(own_table(rows(result(exclude="ab"))))
    assert "ReCAP: measured without the test images that a list names (--exclude)" in told
    assert "ReCAP: measured without" in notes(few_shot_table(rows(result(exclude="ab")), 4))
    assert "--exclude" not in notes(own_table(rows(result())))


def test_methods_on_other_test_images_do_not_stand_side_by_side_unsaid():
    fewer = result(method="nearest")
    fewer[1]["counts"] = {"normal": 1, "abnormal": 2}
    mixed = rows(result(), fewer, result(shots=8))
    told = "BrainMRI K = 4 (ReCAP on 2 abnormal and 2 normal; nearest on 2 abnormal and 1 normal)."
    for table in (own_table(mixed), few_shot_table(mixed, 4)):
        assert (
            f"Not measured on the same test images, so ranks and differences mean little: {told}"
            in (notes(table))
        )
    assert "Not measured on" not in notes(own_table(rows(result(), result(method="nearest"))))
    pools = [(replace(cell, on="pool"), content) for cell, content in (result(), fewer)]
    assert "Not measured on" not in notes(own_table(rows(*pools)))


def test_methods_of_other_sources_do_not_stand_side_by_side_unsaid():
    one = result(0, 0, sources=(("Liver", "ab"),))
    other = result(0, 0, "visualad", sources=(("Liver", "ab"), ("Chest", "cd")))
    told = "BrainMRI (ReCAP on Liver [ab]; VisualAD on Liver [ab], Chest [cd])."
    for table in (own_table(rows(one, other)), zero_shot_table(rows(one, other))):
        assert f"Not fitted on the same sources, so ranks and differences mean little: {told}" in (
            notes(table)
        )
    alike = result(0, 0, "visualad", sources=(("Liver", "ab"),))
    older = result(0, 0, "visualad")
    for same in (alike, older):
        assert "Not fitted on" not in notes(own_table(rows(one, same)))


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("without_mask", "BrainMRI (3): pixel metrics leave out abnormal images without a"),
        ("support_images_in_test", "BrainMRI (3): test images that our detectors were fitted on"),
    ],
)
def test_images_that_something_must_be_said_of_are_counted(key, said):
    cell, content = result()
    assert said in notes(own_table(rows((cell, {**content, key: 3}))))
    assert "(3)" not in notes(own_table(rows((cell, content))))


def on_pool(found):
    cell, content = found
    return replace(cell, on="pool"), content


def test_results_on_pools_say_so_and_are_not_told_to_exclude_test_images():
    cell, content = on_pool(result())
    table = own_table(rows((cell, {**content, "support_images_in_test": 3})))
    assert table.title.text == "Ours on the pools, in %"
    told = notes(table)
    assert "ReCAP: measured on what the supports leave of valid/, not on test/ (--on pool)" in told
    assert "BrainMRI (3): images that were measured are copies" in told
    assert "--exclude" not in told
    assert "test images" not in told
    plain = own_table(rows(result()))
    assert plain.title.text == "Ours, in %"
    assert "--on pool" not in notes(plain)


def test_a_study_on_pools_is_in_none_of_the_papers_tables(tmp_path):
    for name, found in (("components", on_pool(result())), ("conditioning", result())):
        write_result(tmp_path, *found)
        register(tmp_path, name, {"recap": [found[0]]})
    found = collect(tmp_path)
    assert (len(found.components), len(found.conditioning)) == (0, 1)


def test_notes_name_a_data_set_in_one_way_wherever_they_stand():
    """Figures and studies know it by its folder, tables by the paper's name."""
    shown = Shown("ReCAP", "Brain_AD", 0, result()[0].as_json(), fitted_on=3)
    told = [note.text.partition(":")[0] for note in own_notes([shown])]
    assert told[1:] == ["BrainMRI (3)", "BrainMRI", "BrainMRI"]


def test_settings_that_are_not_the_presets_are_told():
    told = notes(own_table(rows(result(training={"epochs": 1}), result(method="nearest"))))
    assert "ReCAP: encoder dinov2-small at 240 px, preset recap with training.epochs = 1" in told
    assert "nearest: encoder dinov2-small at 240 px, preset recap." in told


def test_of_variants_what_all_share_is_told():
    shared = {"training": {"epochs": 1}}
    cells = [result(**shared)[0], result(model={"conditioning": "static"}, **shared)[0]]
    shown = [Shown("ab"[i], "Brain", 0, cell.as_json()) for i, cell in enumerate(cells)]
    (about, *_) = own_notes(shown, variants=True)
    assert about.text.endswith("preset recap with training.epochs = 1.")
    assert "b: encoder" in own_notes(shown)[0].text
