import json

import numpy as np
import pytest
import torch

import recap
from recap.errors import BundleError, InputError
from recap.methods.recap import memory as memory_module
from recap.methods.recap.memory import nearest_rows
from recap.scoring.explain import NO_MEMORY, explain, origin_of, patch_centre

KINDS = [
    "few-shot",
    "write-back",
    "normal-only",
    "zero-shot",
    "shared anchors",
    "taught by masks",
    "taught by labels",
]


@pytest.fixture(scope="module")
def normals():
    """Four images that are unlike each other, of a shape that is no square."""
    rng = np.random.default_rng(5)
    coarse = rng.random((4, 7, 12)).astype(np.float32)
    return [np.kron(image, np.ones((9, 8), np.float32)) for image in coarse]  # 63 × 96


@pytest.fixture(scope="module")
def fit(normals, tiny_settings):
    def make(abnormal=True, **sections):
        diseased = [1 - image for image in normals[:2]] if abnormal else None
        return recap.fit(normals, diseased, settings=tiny_settings(**sections))

    return make


@pytest.fixture(scope="module")
def plain(fit):
    return fit()


@pytest.fixture(scope="module")
def coreset(fit):
    return fit(memory={"coreset": 20})


@pytest.mark.parametrize("kind", KINDS)
def test_contributions_add_up_to_score_and_map(kind, detectors, pictures):
    detector = detectors[kind]
    for picture in pictures[:3]:
        prediction = detector.score(picture)
        height, width = prediction.map.shape
        for xy in (None, (0, 0), (width - 1, height // 3)):
            found = explain(detector, picture, xy)
            x, y = found.xy_px
            assert found.score == prediction.score
            assert found.map_value == prediction.map[y, x]
            assert np.array_equal(found.map, prediction.map)
            # Float32 against float64: nothing but rounding may be left over.
            total = sum(part.amount for part in found.score_parts)
            assert total == pytest.approx(prediction.score, rel=1e-6, abs=1e-7)
            # Following edges divides by small variances, which magnifies it.
            total = sum(part.amount for part in found.map_parts)
            assert total == pytest.approx(float(prediction.map[y, x]), rel=1e-6, abs=2e-6)
            for parts in (found.score_parts, found.map_parts):
                assert sum(part.weight for part in parts) == pytest.approx(1, abs=1e-6)
                assert all(0 <= part.evidence <= 1 for part in parts)


def test_contributions_split_by_branch(detectors, pictures):
    detector = detectors["few-shot"]
    prediction = detector.score(pictures[1])
    found = explain(detector, pictures[1])
    share = detector.card.settings.memory.weight
    for source, weight, whole in (
        ("prototype", 1 - share, prediction.score_prototype),
        ("memory", share, prediction.score_memory),
    ):
        parts = [part for part in found.score_parts if part.source == source]
        assert [part.layer for part in parts] == list(detector.model.encoder.layers)
        assert sum(part.amount for part in parts) == pytest.approx(weight * whole, rel=1e-6)


def test_without_a_place_it_is_the_peak(detectors, pictures):
    found = explain(detectors["normal-only"], pictures[2])
    x, y = found.xy_px
    assert found.map[y, x] == found.map.max()
    assert found.size_hw == (201, 57)


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("abnormal", [True, False])
def test_a_support_image_is_nearest_to_itself(number, abnormal, fit, plain, normals):
    detector = plain if abnormal else fit(abnormal=False)
    found = explain(detector, normals[number], (70, 20))
    branches = {"seg", "det"} if abnormal else {"both"}
    assert {match.branch for match in found.neighbours} == branches
    assert len(found.neighbours) == len(branches) * len(detector.model.encoder.layers)
    # 96 × 63 pixels as 5 × 5 patches: x 70 is in the fourth column, y 20 in the second row.
    assert found.patch_xy_px == pytest.approx((3.5 * 96 / 5 - 0.5, 1.5 * 63 / 5 - 0.5))
    for match in found.neighbours:
        assert match.distance == pytest.approx(0, abs=1e-5)
        assert (match.origin.support, match.origin.name) == (number, f"normal[{number}]")
        assert match.origin.xy_px == pytest.approx(found.patch_xy_px)
        assert match.origin.size_hw == (63, 96)


def test_neighbours_against_a_slow_search(plain, pictures):
    model = plain.model
    pixels = plain.preprocess(recap.io.image_from_array(pictures[1]))[None]
    with torch.inference_mode():
        tokens = model.tokens(model.features(model.encode(pixels)))
    found = explain(plain, pictures[1], (45, 16))
    patch = 2 * 5 + 2  # 91 × 33 pixels: the middle patch
    expected = []
    for layer, rows in enumerate(model.memory.rows):
        for branch in (0, 1):
            query = tokens[branch][layer][0, patch].numpy().astype(np.float64)
            known = rows[branch].numpy().astype(np.float64)
            cosine = known @ query / np.linalg.norm(query) / np.linalg.norm(known, axis=1)
            expected.append((1 - cosine.max(), int(cosine.argmax()) // 25))
    seen = [(match.distance, match.origin.support) for match in found.neighbours]
    assert [support for _, support in seen] == [support for _, support in expected]
    assert [d for d, _ in seen] == pytest.approx([d for d, _ in expected], abs=1e-6)


def test_the_headline_is_the_layer_that_adds_most(plain, pictures):
    found = explain(plain, pictures[0])
    added = {part.layer: part.amount for part in found.map_parts if part.source == "memory"}
    assert found.nearest.branch == "seg"
    assert added[found.nearest.layer] == max(added.values())


def test_rows_are_searched_in_chunks(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    memory = torch.nn.functional.normalize(torch.randn(50, 8, generator=generator), dim=-1)
    tokens = torch.randn(9, 8, generator=generator)
    whole = nearest_rows(tokens, memory)
    monkeypatch.setattr(memory_module, "CHUNK_ROWS", 7)
    distance, row = nearest_rows(tokens, memory)
    assert torch.equal(row, whole[1])
    cosine = torch.nn.functional.cosine_similarity(tokens[:, None], memory[None], dim=-1)
    assert torch.equal(row, cosine.argmax(dim=1))
    assert torch.allclose(distance, 1 - cosine.max(dim=1).values, atol=1e-6)


def test_rows_of_a_coreset_are_known(coreset, normals):
    model, memory = coreset.model, coreset.model.memory
    assert memory.origin.shape == memory.rows.shape[:3]
    for number, image in enumerate(normals):
        pixels = coreset.preprocess(recap.io.image_from_array(image))[None]
        with torch.inference_mode():
            tokens = model.tokens(model.features(model.encode(pixels)))
        for layer in range(4):
            for branch in (0, 1):
                rows = torch.nn.functional.normalize(tokens[branch][layer][0], dim=-1)
                for index, row in enumerate(memory.origin[layer, branch].tolist()):
                    if row // 25 != number:
                        continue
                    kept = memory.rows[layer, branch, index]
                    assert torch.allclose(kept, rows[row % 25], atol=1e-5)
                    place = origin_of(coreset.card, model.encoder, row)
                    assert place.support == number
                    assert place.xy_px == patch_centre(model.encoder, row % 25, (63, 96))


def test_a_saved_coreset_explains_the_same(coreset, pictures, tmp_path):
    coreset.save(tmp_path / "c.recap")
    again = recap.load(tmp_path / "c.recap")
    assert explain(again, pictures[0]).record() == explain(coreset, pictures[0]).record()


def test_a_coreset_larger_than_the_memory_is_the_memory(fit, normals):
    detector = fit(memory={"coreset": 1000})
    assert detector.model.memory.origin is None
    assert explain(detector, normals[2]).nearest.origin.support == 2


@pytest.mark.parametrize("value", [-1, 10**6])
def test_damaged_origins_are_an_error(value, coreset, pictures, tmp_path):
    coreset.save(tmp_path / "c.recap")
    damaged = recap.load(tmp_path / "c.recap")
    damaged.model.memory.origin.fill_(value)
    with pytest.raises(BundleError):
        explain(damaged, pictures[0])


def test_zero_shot_has_no_nearest_patch(detectors, pictures):
    found = explain(detectors["zero-shot"], pictures[0])
    assert (found.neighbours, found.nearest, found.note) == ((), None, NO_MEMORY)
    assert {part.source for part in found.map_parts} == {"prototype"}


def test_the_record_is_json(plain, pictures):
    record = json.loads(json.dumps(explain(plain, pictures[1]).record()))
    assert record["nearest"]["origin"]["name"].startswith("normal[")
    assert sum(part["amount"] for part in record["map_parts"]) == pytest.approx(
        record["map_value"], rel=1e-6
    )
    assert "map" not in record


def test_bundles_that_do_not_tell_sizes_give_no_place(plain, pictures):
    support = [{k: v for k, v in r.items() if k != "size_hw"} for r in plain.card.support]
    older = type(plain)(plain.model, plain.card.model_copy(update={"support": support}))
    origin = explain(older, pictures[0]).nearest.origin
    assert origin.name.startswith("normal[")
    assert (origin.xy_px, origin.size_hw) == (None, None)


@pytest.mark.parametrize("xy", [(-1, 0), (91, 0), (0, 33)])
def test_a_place_outside_is_an_error(xy, plain, pictures):
    with pytest.raises(InputError, match=r"x must be in 0\.\.90, y in 0\.\.32"):
        explain(plain, pictures[1], xy)


@pytest.mark.parametrize("method", ["patchcore", "visualad"])
def test_other_methods_are_explained_by_what_they_are(method, normals, few_shot):
    encoder = few_shot.card.settings.encoder.model_dump()
    settings = recap.resolve_settings(method=method, encoder=encoder)
    if method == "visualad":
        settings = settings.model_copy(
            update={"options": settings.options.model_copy(update={"epochs": 1})}
        )
    diseased = [1 - image for image in normals[:2]] if method == "visualad" else None
    detector = recap.fit(normals, diseased, settings=settings)
    found = explain(detector, normals[0], (70, 20))
    (part,) = found.score_parts
    assert (part.layer, part.weight, part.amount) == (0, 1, found.score)
    assert found.map_parts[0].amount == found.map_value
    assert found.patch_xy_px == pytest.approx((3.5 * 96 / 5 - 0.5, 1.5 * 63 / 5 - 0.5))
