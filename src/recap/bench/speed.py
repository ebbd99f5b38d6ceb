"""Parameters and latency of methods, as ratios to the bare encoder in the same run.

A noisy machine needs a clock of its own: contenders take turns, so that a slow minute hits all
alike.
"""

import gc
import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import fmean, median, quantiles, stdev
from typing import Any, NamedTuple, TypeVar

import torch

from recap.bench.cells import with_changes
from recap.bench.speed_table import Circumstances, SpeedRow
from recap.bench.timed import added_parameters, can_run, run_bare, runs_on, timed_model
from recap.encoders.load import load_encoder
from recap.encoders.vit import Encoder
from recap.errors import InputError
from recap.methods.recap.settings import RecapSettings
from recap.methods.registry import all_methods
from recap.methods.training import choose_device
from recap.progress import Progress, silent

Name = TypeVar("Name")


class Lap(NamedTuple):
    """Time of one call: by the clock on the wall, and of all processors' time."""

    wall_ms: float
    cpu_ms: float


def read_clocks() -> Lap:
    """Both clocks now; only differences mean something."""
    return Lap(time.perf_counter_ns() / 1e6, time.process_time_ns() / 1e6)


def time_rounds(
    calls: Mapping[Name, Callable[[], object]],
    runs: int,
    warmup: int,
    after_round: Callable[[], None] = lambda: None,
    clocks: Callable[[], Lap] = read_clocks,
) -> dict[Name, list[Lap]]:
    """Time every call, one lap per round; the same position is the same round.

    In each round every call is made once, in an order drawn anew: none always follows the same
    neighbour, which leaves the processor's caches warm or cold. The first `warmup` rounds are not
    kept.
    """
    laps: dict[Name, list[Lap]] = {name: [] for name in calls}
    order, draw = list(calls), random.Random(0)
    with _no_collections():
        for number in range(warmup + runs):
            draw.shuffle(order)
            for name in order:
                start = clocks()
                calls[name]()
                end = clocks()
                if number >= warmup:
                    laps[name].append(Lap(end[0] - start[0], end[1] - start[1]))
            after_round()
    return laps


@contextmanager
def _no_collections() -> Iterator[None]:
    """Python's garbage collector strikes at random, so it waits."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Contender(NamedTuple):
    """One model that takes its turn."""

    method: str
    shots: int


Laps = dict[Contender | None, list[Lap]]
"""Round by round; None is the bare encoder."""


def measure_speed(
    methods: Sequence[str],
    shots: Sequence[int],
    sizes_px: Sequence[int],
    settings: RecapSettings,
    *,
    runs: int = 100,
    warmup: int = 20,
    threads: int | None = None,
    device: str = "auto",
    progress: Progress = silent,
) -> list[SpeedRow]:
    """Time every method at every number of shots and input size that it can do, image by image.

    Timed is what turns pixels at the input size into score and map; reading and resizing are not.
    """
    contenders = plan_contenders(methods, shots)
    everything = "all" in methods
    plans = [with_changes(settings, "encoder", input_px=size) for size in sizes_px]
    done, total = itertools.count(1), (runs + warmup) * len(plans)

    def round_is_done() -> None:
        progress("time", next(done), total, "")

    with _threads(threads):
        return [
            row
            for plan in plans
            for row in _rows_at_size(
                contenders, everything, plan, choose_device(device), runs, warmup, round_is_done
            )
        ]


def plan_contenders(methods: Sequence[str], shots: Sequence[int]) -> list[Contender]:
    """The combinations that make sense; "all" stands for every method."""
    names = list(all_methods()) if "all" in methods else list(dict.fromkeys(methods))
    pairs = [Contender(name, k) for k in sorted(set(shots)) for name in names]
    found = [pair for pair in pairs if can_run(*pair)]
    if not found:
        given = ", ".join(map(str, shots))
        raise InputError(
            f"{', '.join(names)}: nothing to time at {given} shots. Give other --shots, such as 4."
        )
    return found


def _rows_at_size(
    contenders: Sequence[Contender],
    everything: bool,
    settings: RecapSettings,
    device: torch.device,
    runs: int,
    warmup: int,
    after_round: Callable[[], None],
) -> list[SpeedRow]:
    # One encoder serves all models of a size, so that a large one is in memory once.
    encoder = load_encoder(settings.encoder, settings.seed).to(device)
    # Of all methods, those that this encoder can serve; one that was asked for by name says why.
    able = [one for one in contenders if not everything or runs_on(one.method, encoder)]
    models = {one: timed_model(one.method, encoder, settings, one.shots) for one in able}
    shape, seeded = (1, 3, encoder.input_px, encoder.input_px), torch.Generator().manual_seed(0)
    pixels = torch.rand(shape, generator=seeded).to(device)
    bare = _until_done(partial(run_bare, encoder, pixels), device)
    calls: dict[Contender | None, Callable[[], object]] = {None: bare}
    for one, model in models.items():
        calls[one] = _until_done(partial(model.to(device), pixels), device)
    with torch.inference_mode():
        laps = time_rounds(calls, runs, warmup, after_round)
    shared = _circumstances(encoder, settings, device, laps[None], warmup)
    return [
        _row(one, added_parameters(model, encoder), laps, shared) for one, model in models.items()
    ]


def _until_done(call: Callable[[], Any], device: torch.device) -> Callable[[], object]:
    """A GPU goes on working after the call returns."""
    if device.type != "cuda":
        return call

    def wait() -> None:
        call()
        torch.cuda.synchronize(device)

    return wait


def _circumstances(
    encoder: Encoder,
    settings: RecapSettings,
    device: torch.device,
    bare: Sequence[Lap],
    warmup: int,
) -> Circumstances:
    times = [lap.wall_ms for lap in bare]
    return {
        "input_px": encoder.input_px,
        "encoder": encoder.name,
        "encoder_params": sum(parameter.numel() for parameter in encoder.parameters()),
        "encoder_ms_mean": fmean(times),
        "encoder_ms_std": stdev(times),
        "encoder_ms_median": median(times),
        "device": str(device),
        "threads": torch.get_num_threads(),
        "torch_version": torch.__version__,
        "runs": len(bare),
        "warmup": warmup,
        "settings": settings.model_dump(mode="json"),
    }


def _row(one: Contender, params: int, laps: Laps, shared: Circumstances) -> SpeedRow:
    own = [lap.wall_ms for lap in laps[one]]
    rounds = list(zip(laps[one], laps[None], strict=True))
    ratios = [mine.wall_ms / bare.wall_ms for mine, bare in rounds]
    low, middle, high = quantiles(ratios, n=4, method="inclusive")
    cpu = None
    # Some systems count processor time in ticks, longer than a small encoder takes.
    if shared["device"] == "cpu" and all(bare.cpu_ms > 0 for _, bare in rounds):
        cpu = median(mine.cpu_ms / bare.cpu_ms for mine, bare in rounds)
    return {
        "method": one.method,
        "shots": one.shots,
        "params": params,
        "latency_ms_mean": fmean(own),
        "latency_ms_std": stdev(own),
        "latency_ms_median": median(own),
        "ratio_to_encoder": middle,
        "ratio_quartiles": (low, high),
        "cpu_ratio_to_encoder": cpu,
        **shared,
    }


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
