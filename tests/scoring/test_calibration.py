import json

import numpy as np
import pytest

from recap.config import ReadingSettings
from recap.errors import SettingsError
from recap.scoring.calibration import Calibration, calibrate_scores, verdict
from recap.scoring.conformal import p_value
from recap.scoring.domain_guard import DomainRange
from recap.types import Decision

NORMAL = np.random.default_rng(0).random(60).tolist()
ABNORMAL = (0.5 + np.random.default_rng(1).random(30)).tolist()
READING = ReadingSettings()


def test_normal_images_alone_give_a_threshold_and_a_level():
    maxima = (np.array(NORMAL) / 2).tolist()
    calibration = calibrate_scores(NORMAL, maxima, fpr=0.05)
    assert calibration.normal_scores == sorted(NORMAL)
    assert (calibration.abnormal_scores, calibration.probability) == (None, None)
    assert sum(score >= calibration.threshold for score in NORMAL) == 2  # 3 / 61 ≤ 0.05
    assert sum(maximum >= calibration.map_level for maximum in maxima) == 2
    assert calibration.operating_points == []


def test_decisions_are_what_p_values_say():
    calibration = calibrate_scores(NORMAL, NORMAL, fpr=0.1)
    for score in [*NORMAL, 0.0, 1.0, 2.0]:
        decision = calibration.decide(score)
        assert decision.p_value == p_value(sorted(NORMAL), score)
        assert decision.abnormal == (decision.p_value <= 0.1)
        assert (decision.probability, decision.in_domain, decision.domain_p_value) == (
            None,
            True,
            None,
        )
        assert f"abnormal from {calibration.threshold:.4g} up" in decision.rule
        assert "at most 10 % of normal images" in decision.rule


def test_labelled_images_give_points_and_a_rising_probability():
    calibration = calibrate_scores(NORMAL, NORMAL, ABNORMAL, sensitivity=0.9)
    names = [point.name for point in calibration.operating_points]
    assert names == ["fpr", "f1", "youden", "sensitivity"]
    assert calibration.operating_points[0].threshold == calibration.threshold
    assert calibration.operating_points[3].sensitivity >= 0.9
    chances = [calibration.decide(score).probability for score in (0.0, 0.5, 1.0, 1.5)]
    assert chances == sorted(chances)
    assert chances[0] < 0.1 < 0.9 < chances[-1]


@pytest.mark.parametrize("name", ["f1", "youden", "sensitivity"])
def test_another_rule_may_decide(name):
    calibration = calibrate_scores(NORMAL, NORMAL, ABNORMAL, decide_by=name)
    point = next(p for p in calibration.operating_points if p.name == name)
    assert calibration.threshold == point.threshold
    assert calibration.decide(point.threshold).abnormal
    assert not calibration.decide(np.nextafter(point.threshold, 0)).abnormal
    assert "on 90 labelled images" in calibration.rule
    with pytest.raises(SettingsError, match="needs abnormal images"):
        calibrate_scores(NORMAL, NORMAL, decide_by=name)


def test_too_few_images_for_the_rate():
    with pytest.raises(SettingsError, match="With 3 normal images"):
        calibrate_scores([0.1, 0.2, 0.3], [0.1, 0.2, 0.3])


def test_leaving_out_takes_the_smallest_rate_there_is_and_says_what_it_is():
    calibration = calibrate_scores([0.1, 0.3, 0.2], [0.5, 0.4, 0.6], source="leave-one-out")
    assert calibration.fpr == 0.25
    assert calibration.threshold == np.nextafter(0.3, 1)
    assert calibration.map_level == np.nextafter(0.6, 1)
    assert "estimate from the support set" in calibration.rule
    assert "nothing is promised" in calibration.guarantee


def test_the_guarantee_in_words():
    text = calibrate_scores(NORMAL, NORMAL, patients=7).guarantee
    assert "At most 5 % of new normal images" in text
    assert "of 7 patients only" in text
    assert "same scanners, sites" in text
    assert "With this very set" not in text  # that interval counts independent images
    for independent in (60, None):
        text = calibrate_scores(NORMAL, NORMAL, patients=independent).guarantee
        assert "patients only" not in text
        assert "With this very set the rate lies between 1.0 % and 11.5 % (95 %)." in text


def test_other_kinds_and_readings_are_not_decided_upon():
    calibration = calibrate_scores(NORMAL, NORMAL, kind="volume", reading=READING)
    assert calibration.why_not("volume", READING) == ""
    assert "calibrated on volumes, this is one of images" in calibration.why_not("image", READING)
    other = ReadingSettings(window="brain")
    said = calibration.why_not("volume", other)
    assert "read with other settings than when calibrated (window brain, not " in said
    assert "recap calibrate with the same" in said


def test_an_image_out_of_the_domain_is_flagged():
    domain = DomainRange(distances=[0.1, 0.2, 0.3], limit=0.5, case_limit=0.4)
    calibration = calibrate_scores(NORMAL, NORMAL)
    checks = [domain.check(0.25), domain.check(0.51)]
    near, far = (calibration.decide(0.1, check) for check in checks)
    assert (near.in_domain, near.domain_p_value) == (True, 0.5)
    assert (far.in_domain, far.domain_p_value) == (False, 0.25)
    assert far.rule.startswith("OUT OF DOMAIN, the score means little")
    assert [verdict(near, checks[0]), verdict(far, checks[1])] == ["normal", "out-of-domain"]
    assert verdict(Decision(True, "", 0.01), None) == "abnormal"
    assert [verdict(None, check) for check in (None, *checks)] == [None, None, "out-of-domain"]
    volume = domain.check(0.45, "volume")  # another limit, and none to compare it with
    assert (volume.in_domain, volume.p_value) == (False, None)
    assert calibration.decide(0.1).domain_p_value is None


def test_through_json_and_back_to_the_last_bit():
    calibration = calibrate_scores(NORMAL, NORMAL, ABNORMAL, patients=3)
    again = Calibration.model_validate(json.loads(calibration.model_dump_json()))
    assert again == calibration
