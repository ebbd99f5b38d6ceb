"""scores.parquet: the same table as scores.csv, with types.

Values in the CSV stay as they are, file names included: programs, this one among them, find the
files again by them. A name such as `=2+3.png` is a formula to a spreadsheet that opens the CSV by a
double click; import it as text, or use this table, whose columns have types.
"""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from recap._files import replacing
from recap.data.text_names import as_text
from recap.errors import require
from recap.results.table import Row

PARQUET = "scores.parquet"
INTEGERS = ("images", "regions", "height", "width")
NUMBERS = ("score", "score_prototype", "score_memory", "p_value", "probability", "map_step_px")
FLAGS = ("in_domain",)


def write_parquet(rows: Sequence[Row], path: Path) -> None:
    """Write the table; what is empty in the CSV is null."""
    arrow = require("pyarrow", "tables")
    parquet = require("pyarrow.parquet", "tables")
    types = {**dict.fromkeys(INTEGERS, arrow.int64()), **dict.fromkeys(NUMBERS, arrow.float64())}
    types |= dict.fromkeys(FLAGS, arrow.bool_())
    names = [field.name for field in fields(Row)]
    schema = arrow.schema([(name, types.get(name, arrow.string())) for name in names])
    columns = [[_value(name, getattr(row, name)) for row in rows] for name in names]
    arrays = [
        arrow.array(values, field.type) for values, field in zip(columns, schema, strict=True)
    ]
    with replacing(path) as file:
        parquet.write_table(arrow.Table.from_arrays(arrays, schema=schema), file)


def _value(name: str, text: str) -> Any:
    if text == "":
        return None
    if name in INTEGERS:
        return int(text)
    if name in NUMBERS:
        return float(text)
    if name in FLAGS:
        return text == "yes"
    return as_text(text)
