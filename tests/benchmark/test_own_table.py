"""Our results without the paper's."""

import pytest

from recap.benchmark.own_table import own_table
from recap.benchmark.table_cells import ResultCell
from recap.benchmark.table_render import render


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
