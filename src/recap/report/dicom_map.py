"""The heat map as a DICOM Parametric Map: float32, on the source's own frames."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from recap.errors import require
from recap.report.dicom_identity import NOTICE, Maker, code
from recap.report.dicom_source import Source, name_sources
from recap.types import FloatArray

# The pixels of an object have a length of 32 bits.
MAX_BYTES = 2**32 - 2


def parametric_map(
    source: Source,
    maps: FloatArray,
    indices: Sequence[int],
    scale: tuple[float, float],
    maker: Maker,
    series: dict[str, Any],
) -> Any:
    """A Parametric Map of some frames of the source; `maps` are those of all frames."""
    highdicom = require("highdicom", "dicom")
    values = maps[list(indices)].astype(np.float32, copy=False)
    written = highdicom.pm.ParametricMap(
        source_images=source.stand_ins(indices),
        pixel_array=values,
        contains_recognizable_visual_features=False,
        real_world_value_mappings=[_meaning(values, scale)],
        voi_lut_transformations=[_window(scale)],
        content_label="ANOMALY_MAP",
        content_description=f"Anomaly map. {NOTICE}",
        **maker.equipment(),
        **series,
    )
    name_sources(written, source)
    written.Laterality = source.frames[0].header.Laterality
    return written


def _window(scale: tuple[float, float]) -> Any:
    """The detector's fixed colour scale; a LINEAR window may not be narrower than 1."""
    low, high = scale
    return require("highdicom", "dicom").VOILUTTransformation(
        window_center=float(f"{(low + high) / 2:.10g}"),
        window_width=float(f"{high - low:.10g}"),
        voi_lut_function="LINEAR_EXACT",
    )


def _meaning(values: FloatArray, scale: tuple[float, float]) -> Any:
    """The stored values are the detector's own, without a unit."""
    highdicom = require("highdicom", "dicom")
    return highdicom.pm.RealWorldValueMapping(
        lut_label="ANOMALY",
        lut_explanation="Anomaly: higher is more abnormal",
        unit=require("pydicom.sr.codedict", "dicom").codes.UCUM.NoUnits,
        value_range=(
            float(min(values.min(), scale[0])),
            float(max(values.max(), scale[1])),
        ),
        slope=1.0,
        intercept=0.0,
        quantity_definition=code("anomaly", "Anomaly of a pixel"),
    )
