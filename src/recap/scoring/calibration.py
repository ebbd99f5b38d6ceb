"""What `recap calibrate` finds out, as it stands in the bundle, and the decisions it leads to."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated, Literal

from pydantic import Field

from recap.config import ReadingSettings, Section
from recap.errors import SettingsError, counted
from recap.io.case import CaseKind
from recap.scoring.conformal import p_value, percent, rate_interval, smallest_rate, threshold_at
from recap.scoring.operating_points import OperatingPoint, PointName, operating_points
from recap.scoring.platt import fit_logistic, probability_of
from recap.types import Decision, DomainCheck

DEFAULT_FPR, DEFAULT_SENSITIVITY = 0.05, 0.95
Source = Literal["held-out", "leave-one-out"]
Verdict = Literal["normal", "abnormal", "out-of-domain"]

_NAMES: dict[PointName, str] = {
    "f1": "highest F1",
    "youden": "highest sensitivity + specificity",
    "sensitivity": "sensitivity asked for",
}
_CASES: dict[CaseKind, str] = {
    "image": "images",
    "frames": "clips",
    "volume": "volumes",
    "slide": "slides",
}


class Calibration(Section):
    """Scores of known images, and the thresholds that follow from them."""

    source: Source
    """`leave-one-out`: an estimate from the support set; otherwise from images held out."""
    kind: CaseKind = "image"
    """What was scored; scores of other kinds are not comparable."""
    reading: ReadingSettings = ReadingSettings()
    normal_scores: Annotated[list[float], Field(min_length=1)]
    """Rising."""
    abnormal_scores: list[float] | None = None
    """Rising."""
    patients: int | None = None
    """How many people the normal images show, where all of their files tell."""
    fpr: Annotated[float, Field(gt=0, lt=1)]
    threshold: float
    """Abnormal from this score up."""
    decided_by: PointName = "fpr"
    """Which rule the threshold comes from."""
    operating_points: list[OperatingPoint] = Field(default_factory=list)
    probability: tuple[float, float] | None = None
    """a and b of 1 / (1 + exp(−(a · score + b)))."""
    map_level: float
    """Regions are where the map reaches it; at most `fpr` of normal images do so anywhere."""

    @property
    def digest(self) -> str:
        """Identifies it."""
        return sha256(self.model_dump_json().encode()).hexdigest()

    def p_value(self, score: float) -> float:
        """The conformal p-value of a score."""
        return p_value(self.normal_scores, score)

    @property
    def rule(self) -> str:
        """How an image is decided upon, in one line."""
        start = f"abnormal from {self.threshold:.4g} up"
        if self.decided_by != "fpr":
            return f"{start}: {_NAMES[self.decided_by]} on {self._labelled} labelled {self._things}"
        n, rate = len(self.normal_scores), percent(self.fpr)
        if self.source == "held-out":
            return (
                f"{start}: at most {rate} of normal {self._things} score so high "
                f"({n} held out, conformal)"
            )
        return (
            f"{start}: about {rate} of normal images score so high (estimate from the support "
            f"set: {n} normal images, each left out of the memory in turn)"
        )

    @property
    def guarantee(self) -> str:
        """What is promised and what is not, in a few sentences."""
        n, rate = len(self.normal_scores), percent(self.fpr)
        if self.source == "leave-one-out":
            return (
                f"Estimated from the support set ({n} normal images), so nothing is promised: the "
                "prototypes were trained on these images, and the true rate of false positives "
                "may be higher. `recap calibrate` with other normal images gives a guarantee."
            )
        promise = (
            f"At most {rate} of new normal {self._things} are called abnormal by the rate rule, "
            "on average over calibration sets, if they come from the same scanners, sites and "
            f"kinds of patients as these {n}{self._people}."
        )
        if self.repeats_patients:  # the interval is one of independent images
            return promise
        low, high = rate_interval(n, self.fpr)
        return (
            f"{promise} With this very set the rate lies between {100 * low:.1f} % and "
            f"{100 * high:.1f} % (95 %)."
        )

    @property
    def repeats_patients(self) -> bool:
        """Whether some normal images are known to show one patient."""
        return self.patients is not None and self.patients < len(self.normal_scores)

    def why_not(self, kind: CaseKind, reading: ReadingSettings) -> str:
        """Why a score cannot be decided upon; empty if it can."""
        if kind != self.kind:
            return (
                f"no decision: calibrated on {self._things}, this is one of {_CASES[kind]}; run "
                f"recap calibrate on {_CASES[kind]}"
            )
        if reading != self.reading:
            return f"no decision: {self._read_otherwise(reading)}"
        return ""

    def _read_otherwise(self, reading: ReadingSettings) -> str:
        """How the file was read, how those of the calibration were, and what to do about it."""
        here, there = reading.model_dump(), self.reading.model_dump()
        names = [name for name in here if here[name] != there[name]]
        seen = ", ".join(f"{name} {here[name]}, not {there[name]}" for name in names)
        return (
            f"read with other settings than when calibrated ({seen}); run recap score without "
            "--window and --axis, or recap calibrate with the same"
        )

    def decide(self, score: float, domain: DomainCheck | None = None) -> Decision:
        """Decide upon a score; out of the domain, the rule says so first."""
        curve = self.probability
        return Decision(
            abnormal=score >= self.threshold,
            rule=warned(self.rule, domain),
            p_value=self.p_value(score),
            probability=None if curve is None else probability_of(curve, score),
            in_domain=domain is None or domain.in_domain,
            domain_p_value=None if domain is None else domain.p_value,
        )

    @property
    def _things(self) -> str:
        return _CASES[self.kind]

    @property
    def _labelled(self) -> int:
        return len(self.normal_scores) + len(self.abnormal_scores or ())

    @property
    def _people(self) -> str:
        if self.patients is None or not self.repeats_patients:
            return ""
        return (
            f" (of {counted(self.patients, 'patient')} only: {self._things} of one patient are "
            "alike, so the promise is weaker)"
        )


def warned(rule: str, domain: DomainCheck | None) -> str:
    """Put the warning of a case that is out of the domain before a rule, or before why there is
    none."""
    return rule if domain is None or domain.in_domain else f"{domain.warning}; otherwise {rule}"


def verdict(decision: Decision | None, domain: DomainCheck | None) -> Verdict | None:
    """Say a decision in a word; None where nothing was decided.

    A case unlike the fitted domain is neither normal nor abnormal, whatever its score, and also
    where its score could not be decided upon.
    """
    if domain is not None and not domain.in_domain:
        return "out-of-domain"
    if decision is None:
        return None
    return "abnormal" if decision.abnormal else "normal"


def check_request(sensitivity: float, decide_by: PointName, labelled: bool) -> None:
    """Refuse what cannot be had; `labelled`: whether there are abnormal images."""
    if decide_by != "fpr" and not labelled:
        raise SettingsError(
            f"Deciding by '{decide_by}' needs abnormal images. Give some with --abnormal, or "
            "decide by fpr."
        )
    if not 0 < sensitivity <= 1:
        raise SettingsError(
            f"The sensitivity must lie between 0 and 1, not {sensitivity}. Give 0.95 for 95 %."
        )


def calibrate_scores(
    normal: Sequence[float],
    normal_maxima: Sequence[float],
    abnormal: Sequence[float] = (),
    *,
    source: Source = "held-out",
    kind: CaseKind = "image",
    reading: ReadingSettings | None = None,
    fpr: float = DEFAULT_FPR,
    sensitivity: float = DEFAULT_SENSITIVITY,
    decide_by: PointName = "fpr",
    patients: int | None = None,
) -> Calibration:
    """All that follows from the scores of known images and the highest values of normal maps.

    Support images are too few for small rates: for leave-one-out the rate is the smallest they
    allow, if that is larger than the one asked for.
    """
    check_request(sensitivity, decide_by, bool(len(abnormal)))
    rising, diseased = sorted(normal), sorted(abnormal)
    if source == "leave-one-out":
        fpr = max(fpr, smallest_rate(len(rising)))
    threshold = threshold_at(rising, fpr)
    points = operating_points(rising, diseased, threshold, sensitivity) if diseased else []
    chosen = {"fpr": threshold} | {point.name: point.threshold for point in points}
    return Calibration(
        source=source,
        kind=kind,
        reading=reading or ReadingSettings(),
        normal_scores=rising,
        abnormal_scores=diseased or None,
        patients=patients,
        fpr=fpr,
        threshold=chosen[decide_by],
        decided_by=decide_by,
        operating_points=points,
        probability=fit_logistic(rising, diseased) if diseased else None,
        map_level=threshold_at(sorted(normal_maxima), fpr),
    )
