"""Results of other images than those that are there."""

from pathlib import Path

import pytest

from recap.bench.supports import Supports, refuse_other_images, refuse_other_supports
from recap.data import write_phantoms
from recap.data.supports import read_exclusions
from recap.errors import InputError


@pytest.fixture(scope="module")
def domain(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    return write_phantoms(root, pool=1, test=2, size_px=32, domains=["Brain"])[0]


def result(samples, **cell):
    images = [{"file": s.path.name, "abnormal": s.abnormal} for s in samples]
    return Path("cell.json"), {"cell": {"dataset": "Brain", **cell}, "images": images}


def test_the_same_images_in_any_order(domain):
    refuse_other_images([result(domain.test()[::-1])], [domain], None)


def test_fewer_images_or_other_labels_are_refused(domain):
    fewer = result(domain.test()[1:])
    with pytest.raises(InputError, match=r"cell\.json: was measured on 3 test images.* the 4 of"):
        refuse_other_images([fewer], [domain], None)
    turned = result(domain.test())
    turned[1]["images"][0]["abnormal"] = True
    with pytest.raises(InputError, match="on 4 test images, which are not the 4 of"):
        refuse_other_images([turned], [domain], None)


def few_shot(support, method="recap", **cell):
    about = {"dataset": "Brain", "method": method, "shots": 1, "draw": 0, **cell}
    return Path("cell.json"), {"cell": about, **({"support": support} if support else {})}


DRAWN = {
    "normal": ["valid/good/img/valid_000.png"],
    "abnormal": ["valid/Ungood/img/valid_000.png"],
}
OTHER = {**DRAWN, "normal": ["valid/good/img/gone.png"]}


def test_a_support_set_that_is_no_longer_drawn_is_refused(domain):
    refuse_other_supports([few_shot(DRAWN)], Supports([domain]))
    refuse_other_supports([few_shot({**DRAWN, "abnormal": []}, "nearest")], Supports([domain]))
    with pytest.raises(
        InputError, match=r"cell\.json: was fitted on .*Brain_AD no longer.*gone\.png"
    ):
        refuse_other_supports([few_shot(DRAWN), few_shot(OTHER)], Supports([domain]))


def test_support_sets_that_need_no_draw_are_left_alone(domain):
    refuse_other_supports([few_shot(None)], Supports([domain]))  # of before they were recorded
    refuse_other_supports(
        [few_shot(OTHER, supports={"normal": OTHER["normal"]})], Supports([domain])
    )
    refuse_other_supports(
        [few_shot(OTHER, shots=9)], Supports([domain])
    )  # told by what is still to run


def test_what_a_list_leaves_out_is_no_difference(domain, tmp_path):
    listed = tmp_path / "exclude.txt"
    listed.write_text("Brain_AD/test/good/img/test_000.png\n")
    refuse_other_images([result(domain.test()[1:])], [domain], read_exclusions(listed))


def test_results_on_pools_are_of_other_images_by_nature(domain):
    refuse_other_images([result([], on="pool")], [domain], None)
