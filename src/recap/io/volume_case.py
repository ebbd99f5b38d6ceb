"""A volume as a case: its slices, shown through one window."""

from recap.config import ReadingSettings
from recap.io.case import Case, LazyImages
from recap.io.volume import Volume
from recap.io.window import own_window, parse_window


def volume_case(volume: Volume, reading: ReadingSettings) -> Case:
    """The slices of a volume, cut when asked for; one window serves all of them."""
    window = parse_window(reading.window) or volume.window or own_window(volume.values)
    return Case(
        kind="volume",
        source=volume.source,
        images=LazyImages(len(volume.values), lambda number: volume.image(number, window)),
        identity=volume.identity,
        grid=volume.grid,
    )
