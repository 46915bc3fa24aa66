"""Timing on a GPU: single launches with the L2 cache flushed, steady state with clocks and power, and what the
numbers depend on.  For the scripts of this folder."""

from __future__ import annotations

import datetime
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tilemma.assemble import find_tool

FLUSH_BYTES = 256 << 20
# Cycles for which the device is kept busy while the host enqueues, at first and at most.
PAUSE, LONGEST_PAUSE = 50_000, 4_000_000


@dataclass
class Sampler:
    """Means of SM clock and power while the block runs; needs nvidia-ml-py."""

    clocks: list[float] = field(default_factory=list)
    powers: list[float] = field(default_factory=list)

    def __enter__(self) -> Sampler:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            card = pynvml.nvmlDeviceGetHandleByIndex(0)
            while not self._stop.wait(0.05):
                self.clocks.append(pynvml.nvmlDeviceGetClockInfo(card, pynvml.NVML_CLOCK_SM))
                self.powers.append(pynvml.nvmlDeviceGetPowerUsage(card) / 1000)
        except Exception as e:
            print(f"no clocks and power: {e}", file=sys.stderr)

    def means(self) -> tuple[float | None, float | None]:
        # The first samples are of the ramp.
        clocks, powers = self.clocks[len(self.clocks) // 3 :], self.powers[len(self.powers) // 3 :]
        return (statistics.mean(clocks), statistics.mean(powers)) if clocks else (None, None)


def flushed(contestants: list[Callable[[], Any]], rounds: int) -> list[float]:
    """Median microseconds of single launches, L2 flushed before each, contestants taking turns in another order in
    each round: the same kernel took up to 1 % more or less time behind another one.

    Every fourth launch of a process took 0.9 us longer, whatever it was: a random number of others stands before
    each that is timed.
    """
    scratch = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    times: list[list[float]] = [[] for _ in contestants]
    pause, turns = PAUSE, random.Random(0)
    for _ in range(rounds):
        for i, run in turns.sample(list(enumerate(contestants)), len(contestants)):
            late = True
            while late:
                for _ in range(turns.randrange(4)):
                    scratch[:1].zero_()
                scratch.zero_()
                start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                # Keep the device busy while the host enqueues, so that the events bracket the kernel alone.
                torch.cuda._sleep(pause)
                start.record()
                run()
                stop.record()
                # A host that was not done when the device came here (other processes took its processors) would
                # be timed, too.
                late = start.query() and pause < LONGEST_PAUSE
                stop.synchronize()
                if late:
                    pause *= 2
            times[i].append(start.elapsed_time(stop) * 1e3)
    return [statistics.median(t) for t in times]


def steady(run: Callable[[], Any], seconds: float, once_us: float) -> tuple[float, float | None, float | None]:
    """Mean microseconds back to back over ``seconds``, with the mean clock and power."""
    batch = max(1, int(0.05e6 / max(once_us, 1.0)))
    total, launches = 0.0, 0
    with Sampler() as sampler:
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(batch):
                run()
            stop.record()
            stop.synchronize()
            # The first half warms up: clocks settle under load.
            if time.perf_counter() - begin > seconds / 2 or launches == 0:
                total += start.elapsed_time(stop) * 1e3
                launches += batch
    return (total / launches, *sampler.means())


def facts() -> dict[str, Any]:
    """What the numbers depend on."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "sms": properties.multi_processor_count,
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "ptxas": find_tool("ptxas").release,
        "inputs": "random normal",
    }
