import gc
import sys
import types

import numpy as np
import pytest
import torch

from recap.bench import speed
from recap.bench.speed import Contender, Lap, measure_speed, plan_contenders, time_rounds
from recap.bench.speed_table import efficiency_table, speed_cells, speed_text
from recap.bench.timed import added_parameters, run_bare, timed_model
from recap.config import Section
from recap.errors import InputError, SettingsError
from recap.methods.base import Scorer
from recap.methods.recap.regimes import build
from recap.methods.registry import METHODS, Method, resolve_settings

PATCHES, WIDTH, LAYERS, PX = 25, 32, 4, 70


class Machine:
    """A pretended machine: a clock that stands still but for the calls made on it."""

    def __init__(self, costs_ms, slowness=lambda call: 1):
        self.wall_ms, self.cpu_ms, self.made, self.slowness = 0, 0, [], slowness
        self.calls = {name: lambda name=name: self._make(name, costs_ms) for name in costs_ms}

    def _make(self, name, costs_ms):
        assert not gc.isenabled()
        self.wall_ms += costs_ms[name] * self.slowness(len(self.made))
        self.cpu_ms += costs_ms[name]
        self.made.append(name)

    def time(self, runs, warmup):
        laps = time_rounds(self.calls, runs, warmup, clocks=lambda: Lap(self.wall_ms, self.cpu_ms))
        assert all(lap.cpu_ms <= lap.wall_ms for own in laps.values() for lap in own)
        return {name: [lap.wall_ms for lap in own] for name, own in laps.items()}


def test_every_round_makes_every_call_once_in_another_order():
    machine = Machine({"encoder": 10, "a": 11, "b": 12})
    times = machine.time(runs=40, warmup=5)
    assert times == {"encoder": [10] * 40, "a": [11] * 40, "b": [12] * 40}
    rounds = [tuple(machine.made[i : i + 3]) for i in range(0, len(machine.made), 3)]
    assert len(rounds) == 45
    assert all(sorted(made) == ["a", "b", "encoder"] for made in rounds)
    assert len(set(rounds)) == 6


def test_a_slow_minute_does_not_change_paired_ratios():
    def slowness(call):
        return 5 if 30 <= call < 60 else 1  # whole rounds of two calls

    times = Machine({"encoder": 10, "method": 12}, slowness).time(runs=50, warmup=0)
    ratios = np.divide(times["method"], times["encoder"])
    np.testing.assert_allclose(ratios, 1.2)
    assert np.std(times["method"]) > 10


def test_warm_up_rounds_are_run_but_not_kept():
    machine = Machine({"encoder": 10}, lambda call: 100 if call < 3 else 1)
    assert machine.time(runs=4, warmup=3)["encoder"] == [10] * 4


def test_the_garbage_collector_comes_back():
    def fail():
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        time_rounds({"bad": fail}, runs=1, warmup=0)
    assert gc.isenabled()


OURS = [name for name, row in METHODS.items() if row.is_ours]


def peer_module(model):
    """A method of somebody's own, as a module."""
    module = types.ModuleType("peer")
    module.Options = type("Options", (Section,), {"__module__": "peer"})
    module.OFFICIAL = {}
    module.build = lambda encoder, options: model()
    return module


@pytest.mark.parametrize("preset", ["recap", "fast", "paper"])
@pytest.mark.parametrize("coreset", [None, 30])
@pytest.mark.parametrize("method", ["recap", "normal_only", "nearest", "static"])
def test_the_memory_is_as_large_as_a_fitted_one(tiny_encoder, method, coreset, preset):
    """Of ours without masks: two branches where lesions are made up, or as published."""
    settings = resolve_settings(preset, memory={"coreset": coreset})
    model = timed_model(method, tiny_encoder, settings, shots=2)
    fitted = build(tiny_encoder, model.settings, model.regime)
    with torch.no_grad():
        tokens = fitted.tokens(fitted.features(fitted.encode(torch.rand(2, 3, PX, PX))))
    fitted.memory.remember(tokens, coreset)
    assert model.memory.rows.shape == fitted.memory.rows.shape
    lengths = model.memory.rows.norm(dim=-1)
    torch.testing.assert_close(lengths, torch.ones(lengths.shape))


def test_models_share_the_encoder_and_answer(tiny_encoder):
    for method, shots in plan_contenders(OURS, [0, 1]):
        model = timed_model(method, tiny_encoder, resolve_settings(), shots)
        assert model.encoder is tiny_encoder
        assert not model.training
        with torch.inference_mode():
            output = model(torch.rand(1, 3, PX, PX))
        assert output.score.shape == (1,)
        assert output.map.shape == (1, PX, PX)
        assert ("memory" in output.scores) == (shots > 0)
        assert ("prototype" in output.scores) == (not METHODS[method].normal_only)
        if method == "static":
            assert output.drift.abs().max() < 1e-6


def test_added_parameters_by_hand(tiny_encoder):
    def count(method, preset="fast"):
        model = timed_model(method, tiny_encoder, resolve_settings(preset), 1)
        return added_parameters(model, tiny_encoder)

    square, prototypes, heads = WIDTH * WIDTH, 2 * WIDTH, 2 * LAYERS
    fusion = 2 * LAYERS
    assert count("static") == heads * (square + prototypes) + fusion
    assert count("recap") == heads * (square + prototypes + 2 * square + 2) + fusion
    assert count("recap", "paper") == count("recap") + heads * square
    assert count("nearest") == 0


def test_the_bare_encoder_runs_to_its_last_block(tiny_encoder):
    pixels = torch.rand(1, 3, PX, PX)
    with torch.no_grad():
        tokens = run_bare(tiny_encoder, pixels)
        normed = tiny_encoder.model.layernorm(tokens)
        # The library's own forward pass: its embedding, its loop over the blocks, its norm.
        whole = tiny_encoder.model((pixels - tiny_encoder.mean) / tiny_encoder.std)
    torch.testing.assert_close(normed, whole.last_hidden_state)


def test_only_combinations_that_make_sense():
    assert plan_contenders(["recap", "nearest"], [4, 0, 4]) == [
        ("recap", 0),
        ("recap", 4),
        ("nearest", 4),
    ]
    assert {one.method for one in plan_contenders(["all"], [1])} == set(METHODS)
    with pytest.raises(SettingsError, match=r"'nearset'.*Did you mean 'nearest'"):
        plan_contenders(["nearset"], [0])
    with pytest.raises(InputError, match="nearest: nothing to time at 0 shots"):
        plan_contenders(["nearest"], [0])


@pytest.fixture
def threads(monkeypatch):
    """Torch's threads as a number alone: real ones are slow on a busy machine."""
    now = [1]
    monkeypatch.setattr(torch, "get_num_threads", lambda: now[-1])
    monkeypatch.setattr(torch, "set_num_threads", now.append)
    return now


@pytest.fixture
def on_tiny(monkeypatch, tiny_encoder):
    monkeypatch.setattr(speed, "load_encoder", lambda settings, seed: tiny_encoder)


def test_rows_hold_paired_statistics(monkeypatch, on_tiny, tiny_encoder):
    drawn = np.random.default_rng(0)
    wall, cpu = drawn.uniform(5, 50, (2, 2, 21))
    (bare, own), contenders = wall, (None, Contender("recap", 0))
    laps = {
        one: [Lap(*lap) for lap in zip(wall[i], cpu[i], strict=True)]
        for i, one in enumerate(contenders)
    }
    monkeypatch.setattr(speed, "time_rounds", lambda *_: laps)
    [row] = measure_speed(["recap"], [0], [PX], resolve_settings(), runs=21, warmup=3)
    assert (row["method"], row["shots"], row["input_px"]) == ("recap", 0, PX)
    assert (row["runs"], row["warmup"]) == (21, 3)
    assert row["latency_ms_mean"] == pytest.approx(own.mean())
    assert row["latency_ms_std"] == pytest.approx(own.std(ddof=1))
    assert row["latency_ms_median"] == pytest.approx(np.median(own))
    assert row["encoder_ms_mean"] == pytest.approx(bare.mean())
    assert row["encoder_ms_median"] == pytest.approx(np.median(bare))
    assert row["ratio_to_encoder"] == pytest.approx(np.median(own / bare))
    assert row["ratio_quartiles"] == pytest.approx(np.quantile(own / bare, [0.25, 0.75]))
    assert row["cpu_ratio_to_encoder"] == pytest.approx(np.median(cpu[1] / cpu[0]))
    assert row["encoder_params"] == sum(p.numel() for p in tiny_encoder.parameters())


def test_a_method_is_one_entry_and_is_timed_as_asked(monkeypatch, on_tiny, threads):
    seen = []

    class Peer(Scorer):
        def forward(self, pixels):
            seen.append((pixels.shape, torch.get_num_threads(), torch.is_inference_mode_enabled()))

    monkeypatch.setitem(METHODS, "peer", Method("peer", "Peer", "yes", module_name="peer"))
    monkeypatch.setitem(sys.modules, "peer", peer_module(Peer))
    steps = []
    rows = measure_speed(
        ["peer", "nearest"],
        [0],
        [PX],
        resolve_settings(),
        runs=3,
        warmup=2,
        threads=3,
        progress=lambda *step: steps.append(step),
    )
    assert [(row["method"], row["shots"]) for row in rows] == [("peer", 0)]
    assert seen == [((1, 3, PX, PX), 3, True)] * 5
    assert threads == [1, 3, 1]
    assert {row["threads"] for row in rows} == {3}
    assert steps == [("time", done, 5, "") for done in range(1, 6)]
    assert rows[0]["ratio_to_encoder"] < 0.5  # it does nothing


def test_impossible_sizes_are_refused_before_any_work(monkeypatch):
    monkeypatch.setattr(speed, "load_encoder", lambda *_: pytest.fail("loaded"))
    with pytest.raises(SettingsError, match="input_px"):
        measure_speed(["recap"], [0], [PX, 5], resolve_settings())


def test_a_gpu_is_waited_for(monkeypatch):
    done = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: done.append("waited"))
    speed._until_done(lambda: done.append("called"), torch.device("cuda"))()
    speed._until_done(lambda: done.append("called"), torch.device("cpu"))()
    assert done == ["called", "waited", "called"]


def row_of(method, shots, encoder="clip-vit-l14-336", input_px=240):
    return {
        "method": method,
        "shots": shots,
        "input_px": input_px,
        "params": 22_000_000,
        "encoder_params": 304_000_000,
        "latency_ms_mean": 105.25,
        "latency_ms_std": 2.5,
        "latency_ms_median": 104.0,
        "ratio_to_encoder": 1.0526,
        "ratio_quartiles": (1.04, 1.07),
        "cpu_ratio_to_encoder": 1.0444,
        "encoder_ms_mean": 100.0,
        "encoder_ms_std": 2.0,
        "encoder_ms_median": 99.0,
        "encoder": encoder,
        "device": "cpu",
        "threads": 2,
        "torch_version": "2.0",
        "runs": 100,
        "warmup": 20,
        "settings": resolve_settings(encoder={"random_weights": True}).model_dump(mode="json"),
    }


def test_ours_stands_beside_the_published_latency():
    rows = [row_of("recap", 0), row_of("recap", 0, input_px=518), row_of("nearest", 4)]
    table = efficiency_table(speed_cells(rows))
    cells = {tuple(label.text for label in row.labels): row.cells for row in table.rows}
    encoder = "CLIP ViT-L/14@336px"
    paired = cells["0", "ReCAP", encoder, "240"]
    assert [cell.ours.value for cell in paired] == pytest.approx([304, 22, 105.25, 1.0526])
    assert (paired[2].ours.std, paired[2].published.value) == (2.5, 17.4)
    assert cells["0", "ReCAP", encoder, "518"][2].published is None
    assert cells["4", "nearest", encoder, "240"][2].ours is not None


def test_text_shows_the_encoder_above_its_methods():
    rows = [row_of("recap", 0), row_of("nearest", 4), row_of("recap", 0, input_px=518)]
    about, head, *lines = speed_text(rows).splitlines()
    assert about.startswith("clip-vit-l14-336 (random weights), cpu, threads: 2, torch 2.0")
    assert about.endswith("batch 1, 100 rounds after 20")
    assert head.split()[:3] == ["method", "shots", "px"]
    starts = ["bare encoder", "recap", "nearest", "bare encoder", "recap"]
    assert [line.split("  ")[0] for line in lines] == starts
    assert lines[1].split()[1:] == [
        "0", "240", "22.00", "105.2", "±", "2.5", "104.0", "1.053", "1.040–1.070", "1.044",
    ]  # fmt: skip
    assert "518" in lines[3]
    assert "1.000" in lines[3]
