"""From finished cells to the rows that tables are made of."""

from collections.abc import Iterable
from typing import Any

from recap.benchmark.table_cells import ResultCell


def result_cells(results: Iterable[dict[str, Any]]) -> list[ResultCell]:
    """Finished cells as table rows. Cells of one method with different settings never mix: two
    results for the same seed are refused by the tables, which name them."""
    return [
        ResultCell(
            method=result["cell"]["method"],
            dataset=result["cell"]["dataset"],
            shots=result["cell"]["shots"],
            seed=result["cell"]["settings"]["seed"],
            metrics=result["metrics"],
            backbone=result["cell"]["settings"]["encoder"]["name"],
            counts=(result["counts"]["abnormal"], result["counts"]["normal"]),
        )
        for result in results
    ]
