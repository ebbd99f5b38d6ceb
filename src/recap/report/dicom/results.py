"""The results of a case out of DICOM files, as DICOM objects of the same patient and study.

    map.dcm            the heat map: Parametric Map, float32
    segments.dcm       the regions: Segmentation, one segment for each finding
    report.dcm         score, decision and findings: Structured Report, TID 1500
    capture-0001.dcm   overlays: Secondary Captures, numbered like the case's images

Where frames have no place in the patient, or share one, each has an object of its own, numbered
likewise. Images without a frame of reference (most radiographs) have no map.dcm: the standard asks
a Parametric Map for one. Without regions there is no segments.dcm: it may not be empty.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recap._files import replacing
from recap.errors import InputError, RecapError, require
from recap.io.case import Case
from recap.io.decoding import no_warnings
from recap.report.dicom.identity import Kind, Maker, NewUid, random_uids
from recap.report.dicom.objects import MAX_BYTES, capture, parametric_map, segmentation
from recap.report.dicom.report import Finding, Labels, as_stored, find_findings, measurement_report
from recap.report.dicom.source import Source, SourceFrame, read_source
from recap.scoring.calibration import verdict
from recap.types import BoolArray, Decision, FloatArray, Prediction, Region

# How many overlays, and how many objects of single frames, there are at most.
MAX_SINGLE = 64
_OURS = ("map*.dcm", "segments*.dcm", "report.dcm", "capture-*.dcm")
_log = logging.getLogger(__name__)

Written = tuple[str, Any]
"""The name of a file, and the data set that it is to hold."""


def write_dicom_results(
    case: Case,
    prediction: Prediction,
    folder: Path,
    *,
    regions: Sequence[Region] = (),
    decision: Decision | None = None,
    level: float | None = None,
    scale: tuple[float, float] = (0.0, 1.0),
    detector: str = "",
    ignore: BoolArray | None = None,
    new_uid: NewUid = random_uids,
) -> list[Path]:
    """Write a case's results as DICOM files into a folder of its own; earlier ones there go.

    `decision` is the prediction's own if none is given. `level` is what the regions were found
    at and `ignore` what they leave out, `scale` the map values drawn from nothing to full
    strength, `detector` what tells the bundle from others.
    """
    require("highdicom", "dicom")
    decision = decision or prediction.decision
    with _quietly(case.source):
        clear_results(folder)
        source = read_source(case)
        maps = prediction.map[None] if prediction.map.ndim == 2 else prediction.map
        _check(case, source, maps)
        work = _Work(case, prediction, source, maps, scale, Maker(new_uid, detector))
        labels, findings = find_findings(case, maps, regions, level, ignore)
        tracking = {finding.number: new_uid() for finding in findings}
        return _save(work.objects(labels, findings, tracking, regions, decision), folder)


def _save(objects: Iterator[Written], folder: Path) -> list[Path]:
    """Write all of them or, where one cannot be made, none: half of them would look complete."""
    paths = []
    try:
        for name, dataset in objects:
            with replacing(folder / name) as file:
                dataset.save_as(file, enforce_file_format=True)
            paths.append(folder / name)
    except Exception:
        clear_results(folder)
        raise
    return paths


def clear_results(folder: Path) -> None:
    """Remove the results in the folder of one case; other files stay."""
    for old in own_results(folder):
        old.unlink()


def own_results(folder: Path) -> Iterator[Path]:
    """Find the files in a folder that are called like results of ours."""
    return (path for pattern in _OURS for path in folder.glob(pattern))


@dataclass(frozen=True, eq=False)
class _Work:
    """The parts that all results of one case are made from."""

    case: Case
    prediction: Prediction
    source: Source
    maps: FloatArray
    """(N, H, W) in the case's order."""
    scale: tuple[float, float]
    maker: Maker

    def objects(
        self,
        labels: Labels,
        findings: Sequence[Finding],
        tracking: Mapping[int, str],
        regions: Sequence[Region],
        decision: Decision | None,
    ) -> Iterator[Written]:
        """One after the other, so that only one is in memory."""
        yield from self._parametric_maps()
        yield from self._segmentations(labels, findings, tracking)
        grid = self.case.grid
        voxel_mm3 = None if grid is None else float(abs(np.linalg.det(grid.affine_ras[:3, :3])))
        report = measurement_report(
            self.source,
            self.prediction.score,
            self._shown(self.prediction.highest),
            decision,
            self.prediction.domain,
            findings,
            tracking,
            voxel_mm3,
            self.maker,
            self._series("report"),
        )
        yield "report.dcm", report
        yield from self._captures(regions, decision)

    def _parametric_maps(self) -> Iterator[Written]:
        stored = as_stored(self.case, self.maps)
        if not self.source.placed:
            _log.info("no Parametric Map: the source has no frame of reference or no position")
            return
        groups = self.source.groups()
        if stored.size * 4 > MAX_BYTES and len(groups) == 1:
            _log.warning("no Parametric Map: its pixels would take more than 4 GB")
            return
        peaks = [float(stored[group].max()) for group in groups]
        for name, indices, series in self._grouped("map", groups, peaks):
            yield (
                name,
                parametric_map(self.source, stored, indices, self.scale, self.maker, series),
            )

    def _segmentations(
        self, labels: Labels, findings: Sequence[Finding], tracking: Mapping[int, str]
    ) -> Iterator[Written]:
        groups = [group for group in self.source.groups() if labels[group].any()]
        # Findings are numbered by their peaks: the lowest number is the highest peak.
        firsts = [-int(labels[group][labels[group] > 0].min()) for group in groups]
        for name, indices, series in self._grouped("segments", groups, firsts):
            yield (
                name,
                segmentation(self.source, labels, indices, findings, tracking, self.maker, series),
            )

    def _grouped(
        self, kind: Kind, groups: Sequence[list[int]], importance: Sequence[float]
    ) -> Iterator[tuple[str, list[int], dict[str, Any]]]:
        """One object for each group, all in one series; the most important if there are many."""
        best = sorted(np.argsort(importance, kind="stable")[::-1][:MAX_SINGLE])
        uid = self.maker.new_uid()
        alone = len(self.source.groups()) == 1
        for index in best:
            frame = groups[index][0]
            series = self._series(kind, uid, 1 if alone else frame + 1)
            yield f"{kind}.dcm" if alone else f"{kind}-{frame + 1:04d}.dcm", groups[index], series

    def _captures(self, regions: Sequence[Region], decision: Decision | None) -> Iterator[Written]:
        """Overlays of the image with the highest score and of all images with regions."""
        peaks: dict[int, float] = {}
        for region in regions:
            peaks[region.image] = max(region.peak, peaks.get(region.image, -np.inf))
        best = sorted(peaks, key=lambda number: peaks[number], reverse=True)
        uid = self.maker.new_uid()
        for number in sorted({self.prediction.highest, *best[: MAX_SINGLE - 1]}):
            picture = capture(
                self.case.images[number],
                self.maps[number],
                self.scale,
                self._lines(number, decision),
                self._shown(number),
                self.source,
                self.maker,
                self._series("capture", uid, number + 1),
            )
            yield f"capture-{number + 1:04d}.dcm", picture

    def _lines(self, number: int, decision: Decision | None) -> list[str]:
        """Write what stands below an overlay."""
        low, high = self.scale
        score = self.prediction.by_image[number].score
        lines = [f"score {score:.4g}, colours from {low:.3g} to {high:.3g}"]
        if len(self.maps) > 1:
            lines[0] = f"image {number + 1} of {len(self.maps)}: {lines[0]}"
            lines.append(f"whole case: score {self.prediction.score:.4g}")
        domain = self.prediction.domain
        if decision is not None:
            said = "abnormal" if decision.abnormal else "not abnormal"
            if verdict(decision, domain) == "out-of-domain":
                said = "unlike what the detector was fitted on"
            return [*lines, f"{said} ({decision.rule}; p = {decision.p_value:.3g})"]
        return lines if domain is None or domain.in_domain else [*lines, domain.warning]

    def _series(self, kind: Kind, uid: str | None = None, instance: int = 1) -> dict[str, Any]:
        series = self.maker.series(kind, self.source.series_number, uid)
        return series | {"instance_number": instance}

    def _shown(self, number: int) -> Sequence[SourceFrame]:
        """The frames that an image of the case shows: its own, or all if it cuts across them."""
        grid = self.case.grid
        if grid is None:
            return [self.source.frames[number]]
        if grid.axes[0] != 2:
            return self.source.frames
        return [self.source.frames[-1 - number if grid.flipped[0] else number]]


def _check(case: Case, source: Source, maps: FloatArray) -> None:
    stored = as_stored(case, maps).shape
    if stored != (len(source.frames), *source.size_hw):
        raise InputError(
            f"{case.source}: the map has {stored} values, but the files have "
            f"{(len(source.frames), *source.size_hw)} pixels. Score the case again."
        )
    if not np.isfinite(maps).all():
        raise InputError(f"{case.source}: the map holds NaN or infinite values. Score it again.")


@contextmanager
def _quietly(name: str) -> Iterator[None]:
    """Keep highdicom's log, which names patients, to itself; what goes wrong becomes one line."""
    logger = logging.getLogger("highdicom")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with no_warnings:
            yield
    except RecapError:
        raise
    except OSError as error:
        raise InputError(
            f"{name}: its DICOM results could not be written ({error.strerror or error}). Check "
            "the folder and its disk, then give the same command again."
        ) from error
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{name}: its headers do not allow DICOM results ({_short(error)}). Export it again."
        ) from error
    except Exception as error:  # one case must not cost those behind it
        raise InputError(
            f"{name}: its DICOM results could not be made ({type(error).__name__}: "
            f"{_short(error)}). Export it again, or leave --dicom away for it."
        ) from error
    finally:
        logger.setLevel(before)


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
