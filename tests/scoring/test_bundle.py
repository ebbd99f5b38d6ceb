import errno
import json
import os
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import recap
from recap.errors import BundleError, InputError
from recap.scoring.bundle import read_card


@pytest.fixture
def bundle(few_shot, tmp_path):
    few_shot.save(tmp_path / "brain.recap")
    return tmp_path / "brain.recap"


def change_card(bundle, **values):
    path = bundle / "bundle.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def change_tensors(bundle, change):
    path = bundle / "head.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    change_card(bundle, head_sha256=None)  # as in bundles that note no digest


def test_numbers_that_changed_on_disk_are_noticed(bundle):
    path = bundle / "head.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # one bit of one number: it still loads
    path.write_bytes(content)
    message = r"brain\.recap/head\.safetensors is damaged: its SHA-256.*Copy the bundle again"
    with pytest.raises(BundleError, match=message):
        recap.load(bundle)


def test_a_bundle_without_a_digest_loads(bundle, few_shot, pictures):
    card = json.loads((bundle / "bundle.json").read_text())
    assert len(card.pop("head_sha256")) == 64
    (bundle / "bundle.json").write_text(json.dumps(card))
    assert recap.load(bundle).score(pictures[0]).score == few_shot.score(pictures[0]).score


def test_a_folder_without_a_card_is_not_a_bundle(tmp_path):
    with pytest.raises(BundleError, match=r"not a recap bundle.*recap fit --out"):
        recap.load(tmp_path)
    with pytest.raises(BundleError, match="nothing: there is no such bundle"):
        recap.load(tmp_path / "nothing")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'{"format": 2}', b"\xff\xfe\x00", b'{"format": 2, "mode": "x"}'],
)
def test_a_damaged_card(content, bundle):
    (bundle / "bundle.json").write_bytes(content)
    with pytest.raises(BundleError, match=r"bundle\.json is damaged.*Copy the bundle again"):
        recap.load(bundle)


def test_a_card_with_an_unknown_key_or_setting_is_refused(bundle):
    change_card(bundle, surprise=1)
    with pytest.raises(BundleError, match=r"bundle\.json is damaged \(surprise: Extra inputs"):
        read_card(bundle)


def test_the_first_wrong_field_of_a_card_is_named(bundle):
    change_card(bundle, encoder={"name": "x", "sha256": 3})
    with pytest.raises(BundleError, match=r"damaged \(encoder\.sha256: Input should be"):
        read_card(bundle)


@pytest.mark.parametrize("number", [0, 1, "2", None])
def test_another_format_is_named(number, bundle):
    change_card(bundle, format=number)
    with pytest.raises(BundleError, match=rf"has format {number!r}.*reads format 2"):
        recap.load(bundle)


def test_truncated_numbers(bundle):
    path = bundle / "head.safetensors"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(BundleError, match=r"head\.safetensors is missing or damaged"):
        recap.load(bundle)


@pytest.mark.parametrize("content", [b"", b"garbage" * 100, b"\x08\x00\x00\x00\x00\x00\x00\x00{}"])
def test_garbled_numbers(content, bundle):
    (bundle / "head.safetensors").write_bytes(content)
    with pytest.raises(BundleError, match="Copy the bundle again"):
        recap.load(bundle)


def test_missing_numbers(bundle):
    (bundle / "head.safetensors").unlink()
    with pytest.raises(BundleError, match=r"head\.safetensors is missing"):
        recap.load(bundle)


def test_other_users_may_read_a_bundle_where_the_umask_lets_them(few_shot, tmp_path):
    few_shot.save(tmp_path / "brain.recap")
    (tmp_path / "plain").touch()
    as_usual = (tmp_path / "plain").stat().st_mode
    files = list((tmp_path / "brain.recap").iterdir())
    assert {file.stat().st_mode for file in files} == {as_usual}


@pytest.mark.parametrize("file", ["bundle.json", "head.safetensors"])
def test_a_file_that_may_not_be_read_is_not_called_damaged(file, bundle, monkeypatch):
    """Played, as root may read everything."""
    really = os.open

    def refuse(path, *args, **kwargs):
        if path == file:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return really(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(BundleError, match=rf"Cannot use .*/{file}: no permission"):
        recap.load(bundle)


def test_a_missing_tensor_is_named(bundle):
    change_tensors(bundle, lambda tensors: tensors.pop("branches.0.theta"))
    with pytest.raises(BundleError, match=r"branches.0.theta do not fit"):
        recap.load(bundle)


def test_a_tensor_too_many_is_named(bundle):
    change_tensors(bundle, lambda tensors: tensors.update(extra=torch.zeros(1)))
    with pytest.raises(BundleError, match="extra do not fit"):
        recap.load(bundle)


def test_settings_that_do_not_fit_the_numbers(bundle):
    card = json.loads((bundle / "bundle.json").read_text())
    card["settings"]["model"]["bottleneck"] = 16
    change_card(bundle, settings=card["settings"])
    with pytest.raises(BundleError, match="do not fit its settings"):
        recap.load(bundle)


def test_numbers_that_are_not_finite(bundle):
    change_tensors(bundle, lambda tensors: tensors["branches.0.theta"].fill_(float("nan")))
    with pytest.raises(BundleError, match="not finite"):
        recap.load(bundle)


def test_a_few_shot_bundle_without_its_memory(bundle):
    """It would score, but as another detector."""
    change_tensors(bundle, lambda tensors: tensors.pop("sources.memory.rows"))
    with pytest.raises(BundleError, match="lacks a memory"):
        recap.load(bundle)


def test_a_zero_shot_bundle_with_a_memory(detectors, tmp_path):
    detectors["zero-shot"].save(tmp_path / "b")
    change_tensors(
        tmp_path / "b",
        lambda tensors: tensors.update({"sources.memory.rows": torch.ones(4, 2, 3, 32)}),
    )
    with pytest.raises(BundleError, match=r"sources\.memory\.rows do not fit"):
        recap.load(tmp_path / "b")


@pytest.fixture
def own_encoder(tiny_folder, tiny_settings, tmp_path):
    """A bundle on a private copy of the encoder, which a test may harm."""
    encoder = tmp_path / "encoder"
    shutil.copytree(tiny_folder, encoder)
    settings = tiny_settings(encoder={"name": str(encoder)})
    recap.fit([np.zeros((20, 20), np.uint8)], settings=settings).save(tmp_path / "b.recap")
    return tmp_path / "b.recap", encoder


def test_a_missing_encoder_is_named_with_its_digest(own_encoder):
    bundle, encoder = own_encoder
    digest = read_card(bundle).encoder.sha256
    shutil.rmtree(encoder)
    with pytest.raises(BundleError, match=rf"b\.recap needs the encoder.*{digest[:12]}"):
        recap.load(bundle)


def test_changed_encoder_weights_are_refused(own_encoder):
    bundle, encoder = own_encoder
    weights = load_file(encoder / "model.safetensors")
    next(iter(weights.values())).add_(1e-3)
    save_file(weights, encoder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BundleError, match=r"was fitted on.*the weights here have"):
        recap.load(bundle)


def test_random_weights_are_refused_unless_asked_for(tiny_settings, tmp_path, pictures):
    settings = tiny_settings(encoder={"random_weights": True})
    detector = recap.fit([pictures[0]], settings=settings)
    detector.save(tmp_path / "b")
    assert detector.card.encoder.sha256 == "random"
    with pytest.raises(BundleError, match=r"scores mean nothing.*--random-weights"):
        recap.load(tmp_path / "b")
    loaded = recap.load(tmp_path / "b", random_weights=True)
    assert loaded.score(pictures[1]).score == detector.score(pictures[1]).score


def test_only_a_bundle_is_ever_replaced(few_shot, tmp_path):
    precious = tmp_path / "photos"
    precious.mkdir()
    (precious / "grandmother.png").write_bytes(b"dear")
    with pytest.raises(BundleError, match="not a recap bundle"):
        few_shot.save(precious)
    assert [path.name for path in tmp_path.rglob("*")] == ["photos", "grandmother.png"]
    file = tmp_path / "file"
    file.write_text("text")
    with pytest.raises(BundleError, match="not a recap bundle"):
        few_shot.save(file)
    assert file.read_text() == "text"


def test_a_bundle_is_replaced_whole(few_shot, detectors, bundle):
    (bundle / "left over").write_text("from the old one")
    abandoned = bundle.with_name(bundle.name + ".writing")
    abandoned.mkdir()
    (abandoned / "half").write_text("of a killed save")
    detectors["zero-shot"].save(bundle)
    assert sorted(path.name for path in bundle.iterdir()) == ["bundle.json", "head.safetensors"]
    assert recap.load(bundle).card.mode == "zero-shot"
    assert [path.name for path in bundle.parent.iterdir()] == [bundle.name]


def test_what_else_lies_in_a_bundle_outlives_its_calibration(few_shot, pictures, bundle, tmp_path):
    few_shot.save(bundle, thumbnails={0: b"a small picture"})
    (bundle / "onnx").mkdir()
    (bundle / "onnx" / "model.onnx").write_bytes(b"a graph")
    calibrated = recap.calibrate(recap.load(bundle), list(pictures[:2]), fpr=0.5).detector
    calibrated.save(bundle)
    assert (bundle / "onnx" / "model.onnx").read_bytes() == b"a graph"
    assert read_card(bundle).thumbnails == 1
    assert recap.load(bundle).card.calibration == calibrated.card.calibration
    calibrated.save(tmp_path / "alone")
    assert not (tmp_path / "alone" / "onnx").exists()
    few_shot.save(bundle, thumbnails={})  # fitted again, and no pictures were asked for
    assert sorted(path.name for path in bundle.iterdir()) == ["bundle.json", "head.safetensors"]


def test_folders_are_made_as_needed(few_shot, tmp_path):
    few_shot.save(tmp_path / "a" / "b" / "c.recap")
    assert recap.load(tmp_path / "a" / "b" / "c.recap").card == few_shot.card


def test_the_card_has_no_date_and_the_bundle_no_encoder(bundle):
    card = json.loads((bundle / "bundle.json").read_text())
    assert not [key for key in card if "date" in key or "time" in key]
    assert not [key for key in load_file(bundle / "head.safetensors") if "encoder" in key]


def test_saving_over_a_link_replaces_what_it_leads_to(few_shot, bundle, tmp_path):
    link = tmp_path / "links" / "current.recap"
    link.parent.mkdir()
    link.symlink_to(bundle)
    (bundle / "notes.txt").touch()
    for _ in range(2):
        few_shot.save(link, thumbnails={})
    assert link.is_symlink()
    assert link.resolve() == bundle
    assert not (bundle / "notes.txt").exists()
    assert recap.load(link).card == few_shot.card
    assert {path.name for path in link.parent.iterdir()} == {"current.recap"}
    assert {path.name for path in tmp_path.iterdir()} == {"links", "brain.recap"}


def test_a_link_that_leads_nowhere_is_refused(few_shot, tmp_path):
    (tmp_path / "b").symlink_to(tmp_path / "gone")
    with pytest.raises(InputError, match="is a link that leads nowhere"):
        few_shot.save(tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


@pytest.mark.parametrize("left", ["brain.recap.replaced", "brain.recap.writing"])
def test_links_in_the_way_of_a_save_are_removed_and_not_followed(few_shot, bundle, tmp_path, left):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / left).symlink_to(tmp_path / "elsewhere")
    few_shot.save(bundle)
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere", "brain.recap"}


def test_a_bundle_may_be_the_folder_one_is_in(few_shot, bundle, monkeypatch):
    monkeypatch.chdir(bundle)
    few_shot.save(".")
    assert {path.name for path in bundle.parent.iterdir()} == {"brain.recap"}
    assert recap.load(bundle).card.fingerprint == few_shot.card.fingerprint
