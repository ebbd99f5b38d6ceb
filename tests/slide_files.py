"""Makes slides for tests: pyramidal tiled TIFF as openslide reads it, with Camelyon's XML."""

from pathlib import Path

import numpy as np
import tifffile

PINK, PURPLE, GLASS = (226, 160, 200), (120, 60, 150), (243, 242, 244)


def blank(height, width):
    """Glass only."""
    return np.full((height, width, 3), GLASS, dtype=np.uint8)


def shrink(pixels, factor):
    """Every pixel the mean of a square; what is left over makes a last row or column."""
    if factor == 1:
        return pixels
    height, width = (-(-side // factor) * factor for side in pixels.shape[:2])
    padding = ((0, height - pixels.shape[0]), (0, width - pixels.shape[1]), (0, 0))
    full = np.pad(pixels, padding, mode="edge").astype(np.float32)
    cells = full.reshape(height // factor, factor, width // factor, factor, 3)
    return np.rint(cells.mean(axis=(1, 3))).astype(np.uint8)


def write_slide(path, pixels, um_per_px=0.25, factors=(1, 2, 4), tile=64, **tags):
    """Write a slide with one level per factor; without a resolution if that is None."""
    with tifffile.TiffWriter(path) as writer:
        for factor in factors:
            if um_per_px is not None:
                per_cm = 10_000 / (um_per_px * factor)
                tags |= {"resolution": (per_cm, per_cm), "resolutionunit": "CENTIMETER"}
            writer.write(
                shrink(pixels, factor),
                tile=(tile, tile),
                photometric="rgb",
                compression="zlib",
                subfiletype=int(factor > 1),
                metadata=None,
                **tags,
            )
    return Path(path)


def write_annotations(path, polygons):
    """Write polygons as (group, [(row, column), …]) in ASAP's XML."""
    drawn = "".join(
        f'<Annotation Name="Annotation {number}" Type="Polygon" PartOfGroup="{group}" '
        'Color="#F4FA58"><Coordinates>'
        + "".join(
            f'<Coordinate Order="{order}" X="{column}" Y="{row}" />'
            for order, (row, column) in enumerate(points)
        )
        + "</Coordinates></Annotation>"
        for number, (group, points) in enumerate(polygons)
    )
    groups = "".join(
        f'<Group Name="{group}" PartOfGroup="None" Color="#00ff00"><Attributes /></Group>'
        for group in sorted({group for group, _ in polygons})
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        '<?xml version="1.0"?>\n<ASAP_Annotations>'
        f"<Annotations>{drawn}</Annotations><AnnotationGroups>{groups}</AnnotationGroups>"
        "</ASAP_Annotations>\n",
        encoding="utf-8",
    )
    return path
