"""`accelerate launch` with two processes fits the same detector as one."""

import pytest
from safetensors.torch import load_file

from recap.scoring.bundle import read_card

pytestmark = pytest.mark.slow


def manifest(domain, path):
    """The pool of a domain; one abnormal image has no mask, so labels and masks both teach."""
    rows, without = ["path,label,mask"], next(s.path for s in domain.pool() if s.abnormal)
    for sample in domain.pool():
        mask = "" if sample.path == without else sample.mask or ""
        rows.append(f"{sample.path},{int(sample.abnormal)},{mask}")
    path.write_text("\n".join(rows))
    return path


def test_two_processes_equal_one(command, run_module, brain, tiny_folder, tmp_path):
    pytest.importorskip("accelerate")
    options = ["--dataset", manifest(brain, tmp_path / "pool.csv"), "--shots", 3]
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
    assert min(cards[0].losses["segmentation"], cards[0].losses["detection"]) > 0
    for term, value in cards[0].losses.items():
        assert cards[1].losses[term] == pytest.approx(value, abs=1e-4)
    assert both.stdout.count("Fitted on 3 normal and 3 abnormal images.") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "pool.csv", "two"]
