"""Loading detectors for a runtime, one or several."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recap.runtime.choice import choose_runtime, device_for
from recap.scoring.bundle import read_card
from recap.scoring.detector import Detector, load_detector


def load(
    path: str | Path,
    device: str = "auto",
    random_weights: bool = False,
    encoder: Any = None,
    *,
    runtime: str | None = None,
    threads: int | None = None,
) -> Detector:
    """Load a saved detector, ours or another method's.

    Its encoder must be here and be the one it was fitted on. An encoder that is loaded already
    can be given, and then serves this detector too. `device` is auto, cpu or cuda. `runtime` is
    torch (also when not given), onnx, openvino (see `recap export`) or auto, the fastest of these
    on this machine.
    """
    detector = load_detector(path, device_for(device, runtime), random_weights, encoder)
    if runtime is not None or threads is not None:
        choose_runtime(detector, runtime or "torch", Path(path), threads)
    return detector


def load_many(
    paths: Sequence[str | Path],
    device: str = "auto",
    random_weights: bool = False,
    runtime: str | None = None,
) -> list[Detector]:
    """Load detectors to score many images, which a runtime that is given then runs side by side.

    Those with the same encoder settings share one encoder in memory.
    """
    where = device_for(device, runtime)
    encoders: dict[str, Any] = {}
    detectors = []
    for path in paths:
        card = read_card(Path(path))
        key = f"{card.settings.method} {card.encoder.sha256} {card.settings.seed} "
        key += card.settings.encoder.model_dump_json()
        detector = load_detector(path, where, random_weights, encoders.get(key))
        encoders.setdefault(key, detector.model.encoder)
        if runtime is not None:
            choose_runtime(detector, runtime, Path(path), side_by_side=True)
        detectors.append(detector)
    return detectors
