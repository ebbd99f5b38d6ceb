"""Our results without the paper's, and what is said of them alone."""

from dataclasses import replace

import pytest

from recap.bench.render import render
from recap.bench.table_cells import ResultCell
from recap.bench.tables import few_shot_table, own_table, seeds_table


def run(method, dataset, shots, seed, **metrics):
    return ResultCell(method, dataset, shots, seed, metrics)


def test_all_shots_in_one_table_and_nothing_published():
    table = own_table(
        [
            run("recap", "Brain", 4, 0, image_auroc=0.90, pixel_auroc=0.99),
            run("recap", "Brain", 4, 1, image_auroc=0.94, pixel_auroc=0.97),
            run("nearest", "Brain", 4, 0, image_auroc=0.70),
            run("recap", "Knee", 0, 0, image_auroc=0.60),
        ]
    )
    labels = [tuple(label.text for label in row.labels) for row in table.rows]
    assert labels == [
        ("0", "Knee", "Image AUROC"),
        ("4", "BrainMRI", "Image AUROC"),
        ("4", "BrainMRI", "Pixel AUROC"),
    ]
    assert [column.label.text for column in table.columns] == ["ReCAP", "nearest"]
    recap, nearest = table.rows[1].cells
    assert (recap.ours.value, recap.ours.seeds) == (pytest.approx(92), 2)
    assert (recap.ours.rank, nearest.ours.rank) == ("best", "second")
    assert not any(cell.published for cell in table.cells)
    assert "| 4 | BrainMRI | Image AUROC | **92.0 ± 2.8** |" in render([table], "md")


def extensions(table):
    """Which columns or rows have the footnote that a method is an extension."""
    labels = [column.label for column in table.columns]
    labels += [label for row in table.rows for label in row.labels]
    return {
        label.text: note.key
        for label in labels
        for note in label.notes
        if note.key.startswith("extension")
    }


def test_extensions_are_told_of_our_numbers_alone():
    assert extensions(few_shot_table([], 4)) == {}
    assert extensions(seeds_table([])) == {}
    few_shot = run("visualad", "Brain", 4, 0, image_auroc=0.8)
    expected = {"VisualAD": "extension-visualad-few-shot"}
    for table in (few_shot_table([few_shot], 4), seeds_table([few_shot]), own_table([few_shot])):
        assert extensions(table) == expected
    # Zero-shot it is what was published, whatever shots other methods have.
    zero = [run("visualad", "Brain", 0, 0, image_auroc=0.8), run("recap", "Brain", 4, 0)]
    zero.append(run("recap", "Brain", 4, 1, image_auroc=0.8))
    assert extensions(own_table(zero)) == {}
    # Two presets in one grid.
    both = [replace(few_shot, method=f"visualad ({preset})") for preset in ("equal", "official")]
    named = dict.fromkeys(("visualad (equal)", "visualad (official)"), expected["VisualAD"])
    assert extensions(own_table(both)) == named
    assert extensions(few_shot_table(both, 4)) == named


@pytest.mark.parametrize(
    ("shots", "key", "said"),
    [
        (4, "extension-dra-maps", "DRA: its maps here are an extension."),
        (
            0,
            "extension-dra-zero-shot-maps",
            "DRA: its zero-shot form and its maps here are an extension.",
        ),
    ],
)
def test_maps_that_a_method_was_published_without_are_told(shots, key, said):
    table = own_table([run("dra", "Brain", shots, 0, image_auroc=0.8, pixel_auroc=0.7)])
    assert extensions(table) == {"DRA": key}
    assert said in render([table], "md")
