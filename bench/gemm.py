"""Matrix products of kernels written in tilemma beside the vendor's library, in one process, interleaved.

    python bench/gemm.py examples/py/matmul_wgmma_2group.py --shapes 4096x4096x4096 8192x8192x8192
    python bench/gemm.py "examples/py/persistent.py?STAGES=4" --steady 2 --json out.json --svg out.svg

Shapes are M x N x K of C[M, N] = A[M, K] B[N, K], random normal data.  Two regimes: the median of single
launches with the L2 cache flushed before each, and the mean over launches back to back for some seconds
(the power-limited steady state).  The peer is torch.mm(out=), which is cuBLAS.  Every result is checked
against float64 within the error bound before it is timed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from tilemma import testing
from tilemma.assemble import find_tool
from tilemma.kernels import Kernel, load, load_python
from tilemma.tools.problem import accumulator, literal

FLUSH_BYTES = 256 << 20
DEFAULT_SHAPES = ("1024x1024x1024", "4096x4096x4096", "8192x8192x8192")


@dataclass
class Row:
    """One kernel at one shape; times in microseconds, clocks in MHz, power in watts."""

    kernel: str
    dtype: str
    m: int
    n: int
    k: int
    share_of_bound: float
    flushed_us: float
    peer_flushed_us: float
    steady_us: float | None = None
    peer_steady_us: float | None = None
    clock: float | None = None
    peer_clock: float | None = None
    power: float | None = None
    peer_power: float | None = None

    def tflops(self, microseconds: float) -> float:
        return 2 * self.m * self.n * self.k / microseconds / 1e6

    @property
    def flushed_ratio(self) -> float:
        return self.peer_flushed_us / self.flushed_us

    @property
    def steady_ratio(self) -> float | None:
        if self.steady_us is None or self.peer_steady_us is None:
            return None
        return self.peer_steady_us / self.steady_us


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
    """Median microseconds of single launches, L2 flushed before each, contestants taking turns."""
    scratch = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    times: list[list[float]] = [[] for _ in contestants]
    for _ in range(rounds):
        for i, run in enumerate(contestants):
            scratch.zero_()
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            # Keep the device busy while the host enqueues, so that the events bracket the kernel alone.
            torch.cuda._sleep(20_000)
            start.record()
            run()
            stop.record()
            stop.synchronize()
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


def kernel_of(spec: str) -> tuple[Kernel, dict[str, Any]]:
    """``file[:kernel][?NAME=VALUE&..]``: the kernel and its compile-time values."""
    path, _, options = spec.partition("?")
    path, _, name = path.partition(":")
    constants = dict(pair.split("=", 1) for pair in options.split("&") if pair)
    values = {k: literal(v) for k, v in constants.items()}
    if path.endswith(".py"):
        module = load_python(path)
        return (module[name] if name else module.only()), values
    module = load(path, values)
    return (module[name] if name else module.only()), {}


def measure(spec: str, shape: tuple[int, int, int], options: argparse.Namespace) -> Row:
    kernel, constants = kernel_of(spec)
    m, n, k = shape
    torch.manual_seed(0)
    kind = {"f16": torch.float16, "bf16": torch.bfloat16}[options.dtype]
    a, b = (torch.randn(rows, k, device="cuda").to(kind) for rows in (m, n))
    c, d = (torch.full((m, n), float("nan"), device="cuda", dtype=kind) for _ in range(2))

    def ours() -> None:
        kernel(a, b, c, **constants)

    def peer() -> None:
        torch.mm(a, b.t(), out=d)

    ours(), peer()
    torch.cuda.synchronize()
    bound = testing.error_bound(a, b.T, acc=accumulator(kernel.build(**constants)) or "f32", out=options.dtype)
    share = testing.share_of_bound(c, testing.reference("mk,nk->mn", a, b), bound)
    for run in (ours, peer) * 3:
        run()
    mine, theirs = flushed([ours, peer], options.rounds)
    row = Row(spec, options.dtype, m, n, k, share, mine, theirs)
    if options.steady:
        row.steady_us, row.clock, row.power = steady(ours, options.steady, mine)
        row.peer_steady_us, row.peer_clock, row.peer_power = steady(peer, options.steady, theirs)
    return row


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


def line(row: Row) -> str:
    text = f"{Path(row.kernel).name:34} {row.m}x{row.n}x{row.k:<6} {row.share_of_bound:6.3f}"
    text += f" {row.flushed_us:10.1f} {row.tflops(row.flushed_us):7.1f} {row.flushed_ratio:6.3f}"
    if row.steady_us is not None and row.steady_ratio is not None:
        text += f" {row.tflops(row.steady_us):8.1f} {row.steady_ratio:6.3f}"
        if row.clock is not None and row.peer_clock is not None:
            text += f"  {row.clock:.0f}/{row.peer_clock:.0f} MHz {row.power:.0f}/{row.peer_power:.0f} W"
    return text


def roofline(rows: list[Row], peak: float, bandwidth: float) -> str:
    """An SVG: arithmetic intensity (FLOP per byte moved at least) against TFLOP/s, both logarithmic."""
    from math import log10

    width, height, left, bottom = 640, 400, 60, 40
    points = [(2 * r.m * r.n * r.k / (2 * (r.m * r.k + r.n * r.k + r.m * r.n)), r) for r in rows]
    low, high = 1.0, max(1e4, *(p[0] for p in points))

    def x(intensity: float) -> float:
        return left + (width - left - 20) * log10(intensity / low) / log10(high / low)

    def y(tflops: float) -> float:
        return height - bottom - (height - bottom - 20) * log10(max(tflops, 1)) / log10(peak * 1.3)

    ridge = peak / bandwidth
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">'
    ]
    parts.append(f'<rect width="{width}" height="{height}" fill="white"/>')
    corners = [(low, low * bandwidth), (ridge, peak), (high, peak)]
    path = " ".join(f"{x(i):.1f},{y(t):.1f}" for i, t in corners)
    parts.append(f'<polyline points="{path}" fill="none" stroke="#888" stroke-width="2"/>')
    for intensity, r in points:
        for value, colour in ((r.tflops(r.flushed_us), "#d62728"), (r.tflops(r.peer_flushed_us), "#1f77b4")):
            parts.append(f'<circle cx="{x(intensity):.1f}" cy="{y(value):.1f}" r="4" fill="{colour}"/>')
    for t in (1, 10, 100, 1000):
        if t < peak * 1.3:
            parts.append(f'<text x="8" y="{y(t):.1f}" font-size="11">{t}</text>')
    parts.append(f'<text x="{left}" y="{height - 8}" font-size="11">FLOP per byte (log), red: tilemma, ')
    parts.append("blue: cuBLAS, grey: ceilings; vertical: TFLOP/s (log)</text></svg>")
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernels", nargs="+", help="file[:kernel][?NAME=VALUE&..]")
    parser.add_argument("--shapes", nargs="+", default=DEFAULT_SHAPES, metavar="MxNxK")
    parser.add_argument("--dtype", default="f16", choices=["f16", "bf16"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steady", type=float, default=0.0, help="seconds of steady state (0: not measured)")
    parser.add_argument("--peak", type=float, default=828.0, help="TFLOP/s ceiling drawn in the picture")
    parser.add_argument("--bandwidth", type=float, default=4.35, help="TB/s ceiling drawn in the picture")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    about = facts()
    print(", ".join(f"{k} {v}" for k, v in about.items()))
    print(f"{'kernel':34} {'M x N x K':16} {'error':>6} {'us':>10} {'TFLOP/s':>7} {'ratio':>6}  steady  ratio")
    rows = []
    for spec in options.kernels:
        for shape in options.shapes:
            m, n, k = (int(x) for x in shape.split("x"))
            try:
                rows.append(measure(spec, (m, n, k), options))
                print(line(rows[-1]), flush=True)
            except Exception as e:
                print(f"{spec} {shape}: {type(e).__name__}: {e}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({**about, "rows": [asdict(r) for r in rows]}, indent=1) + "\n")
    if options.svg and rows:
        options.svg.write_text(roofline(rows, options.peak, options.bandwidth))
    return 0 if rows and all(r.share_of_bound <= 1 for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
