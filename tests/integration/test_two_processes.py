"""`accelerate launch` with two processes fits the same detector as one."""

import pytest
from safetensors.torch import load_file

from recap.scoring.bundle import read_card

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("masks", [True, False])
def test_two_processes_equal_one(masks, command, run_module, brain, tiny_folder, tmp_path):
    pytest.importorskip("accelerate")
    valid = brain.root / "valid"
    options = ["--normal", valid / "good", "--abnormal", valid / "Ungood" / "img"]
    if masks:
        options += ["--masks", valid / "Ungood" / "anomaly_mask"]
    options += ["--encoder", tiny_folder, "--device", "cpu"]
    # Batches of four and two of six images: shares of one and two, of unequal work.
    for setting in ("encoder.input_px=70", "training.augment=false", "training.epochs=4",
                    "training.batch_size=4", "model.logit_scale=10"):  # fmt: skip
        options += ["--set", setting]
    alone = command("fit", *options, "--out", tmp_path / "one")
    assert alone.code == 0, alone.err
    launch = ["accelerate.commands.launch", "--cpu", "--num_processes", 2, "--num_machines", 1,
              "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", 0,
              "--module"]  # fmt: skip
    both = run_module(*launch, "recap", "fit", *options, "--out", tmp_path / "two")
    assert both.returncode == 0, both.stderr
    one, two = (load_file(tmp_path / name / "head.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name in one:
        assert (one[name] - two[name]).abs().max() < 1e-4, name
    cards = [read_card(tmp_path / name) for name in ("one", "two")]
    assert cards[0].fingerprint == cards[1].fingerprint
    for term, value in cards[0].losses.items():
        assert cards[1].losses[term] == pytest.approx(value, abs=1e-4)
    assert both.stdout.count("Fitted on 3 normal and 3 abnormal images.") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
