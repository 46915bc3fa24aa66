"""Matrix products against the vendor's library, in one process, interleaved.

    python bench/gemm.py examples/py/persistent.py --shapes 4096,8192,4096x14336x4096 --json out.json --svg out.svg
    python bench/gemm.py bench/plain_warps.co --base examples/co/double_buffer.co --arch sm_80 --dtypes f16,bf16

C[M, N] = A[M, K] x B[N, K]^T, f32 sums, random normal data.  Two regimes, each as a ratio to `torch.mm`,
or to the kernel ``--base``:

* flushed: the median of single launches, L2 emptied before each, contestants taking turns; the ratio is the median
  of the rounds' ratios;
* steady: launches back to back for some seconds each, with the mean SM clock and power.

A kernel is FILE[:NAME][@KEY=VALUE,..]; `GRID` is set to the number of multiprocessors where a kernel has it.
`tilelang[@tile=128x256x64,stages=3,threads=256]` is TileLang's plain kernel (`bench/tilelang_plain.py`).
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import geometric_mean, mean, median
from typing import Any

import torch

import tilemma as tm
from tilemma.kernels import Kernel
from tilemma.modules import load_python

L2_BYTES = 256 << 20
WAKING = 16  # times L2_BYTES written: a millisecond
# NVIDIA H200 data sheet: dense f16 peak and memory bandwidth, for the picture.
PEAK_TFLOPS, PEAK_TBYTES = 989.0, 4.8
TYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Contestant:
    name: str
    run: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]


@dataclass
class Measured:
    """One contestant on one shape; times in microseconds, clock in MHz, power in watts."""

    kernel: str
    shape: tuple[int, int, int]
    dtype: str
    flushed_us: float = math.nan
    steady_us: float = math.nan
    sm_clock: float = math.nan
    power: float = math.nan
    error: float = math.nan
    failed: str = ""
    flushed_ratio: float = math.nan
    steady_ratio: float = math.nan
    samples_us: list[float] = field(default_factory=list)

    @property
    def flops(self) -> float:
        m, n, k = self.shape
        return 2.0 * m * n * k

    def tflops(self, microseconds: float) -> float:
        return self.flops / microseconds / 1e6


def parse_shape(text: str) -> tuple[int, int, int]:
    """``4096`` (a cube) or ``MxNxK``."""
    parts = [int(x) for x in text.split("x")]
    if len(parts) not in (1, 3):
        raise argparse.ArgumentTypeError(f"{text}: a number, or MxNxK")
    return (parts[0],) * 3 if len(parts) == 1 else (parts[0], parts[1], parts[2])


def parse_kernel(text: str, dtype: str, processors: int, arch: str | None = None) -> Contestant:
    """FILE[:NAME][@KEY=VALUE,..] as a contestant, compiled for ``arch`` where one is given."""
    place, _, settings = text.partition("@")
    if place == "tilelang":
        import tilelang_plain

        return Contestant(text, tilelang_plain.run(dict(s.split("=", 1) for s in settings.split(",") if s), dtype))
    file, _, name = place.partition(":")
    # The examples in `.co` name their element type, which a definition cannot replace.
    text = re.sub(r"\bf16\b", dtype, Path(file).read_text()) if file.endswith(".co") else ""
    module = tm.loads(text, name=file) if text else load_python(file)
    kernel: Kernel = module[name] if name else module.only()
    given = dict(s.split("=", 1) for s in settings.split(",") if s)
    constants: dict[str, Any] = {k: int(v) if v.lstrip("-").isdigit() else v for k, v in given.items()}
    for key, value in (("GRID", processors), ("T", dtype)):
        if key in kernel.source.constants:
            constants.setdefault(key, value)
    name = Path(file).stem + (f"@{settings}" if settings else "")
    if arch is None:
        return Contestant(name, lambda a, b, c: kernel(a, b, c, **constants))
    runner = kernel.on("cuda", arch=arch)
    launches: dict[tuple[int, ...], Any] = {}

    def run(*tensors: torch.Tensor) -> None:
        key = tuple((x.data_ptr(), *x.shape) for x in tensors)
        if key not in launches:
            launches[key] = runner.prepare(*tensors, **constants)
        for launch in launches[key]:
            launch()

    return Contestant(name, run)


class Sampler:
    """SM clock and power while something runs, from nvidia-smi; ``power`` is what it calls that."""

    def __init__(self, power: str = "power.draw") -> None:
        self.query = f"clocks.sm,{power}"
        self.clock: list[float] = []
        self.power: list[float] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        query = [
            "nvidia-smi",
            "-i",
            "0",
            f"--query-gpu={self.query}",
            "--format=csv,noheader,nounits",
            "-lms",
            "50",
        ]
        try:
            process = subprocess.Popen(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            yield
            return
        thread = threading.Thread(target=self._read, args=(process,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            process.terminate()
            process.wait()
            thread.join(timeout=1)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                clock, power = (float(x) for x in line.split(","))
            except ValueError:
                continue
            self.clock.append(clock)
            self.power.append(power)

    def means(self) -> tuple[float, float]:
        """(MHz, W) over the second half, when clocks have settled."""
        half = len(self.clock) // 2
        if not self.clock[half:]:
            return math.nan, math.nan
        return sum(self.clock[half:]) / len(self.clock[half:]), sum(self.power[half:]) / len(self.power[half:])


def flushed(contestants: list[Contestant], tensors: Any, repeats: int, rest: float = 0.0) -> list[list[float]]:
    """Microseconds of single launches, contestants taking turns, L2 written over before each.

    With ``rest`` each launch follows that many seconds of an idle card, and a millisecond to wake it: without,
    only the first of a round follows a rest, and its clocks are not those of the others.
    """
    waste = torch.empty(L2_BYTES, dtype=torch.int8, device="cuda")
    events = [
        [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)] for _ in contestants
    ]
    for i in range(repeats):
        for j in range(len(contestants)):
            which = (i + j) % len(contestants)
            waste.zero_()
            if rest:
                torch.cuda.synchronize()
                time.sleep(rest)
                # An idle card gets its clocks back in about a millisecond, and not under the heaviest load first.
                for _ in range(WAKING):
                    waste.zero_()
            start, stop = events[which][i]
            start.record()
            contestants[which].run(*tensors)
            stop.record()
        torch.cuda.synchronize()
    return [[start.elapsed_time(stop) * 1e3 for start, stop in series] for series in events]


def steady(
    contestant: Contestant, tensors: Any, seconds: float, guess_us: float, power: str = "power.draw"
) -> tuple[float, float, float]:
    """(microseconds a launch, MHz, W) of launches back to back."""
    batch = max(1, int(5e4 / guess_us))
    sampler = Sampler(power)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    count, busy = 0, 0.0
    with sampler.running():
        for _ in range(max(1, int(2e5 / guess_us))):
            contestant.run(*tensors)
        torch.cuda.synchronize()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            start.record()
            for _ in range(batch):
                contestant.run(*tensors)
            stop.record()
            torch.cuda.synchronize()
            count, busy = count + batch, busy + start.elapsed_time(stop) * 1e3
    return busy / count, *sampler.means()


def error_of(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> float:
    """Largest difference from a sum in f32, as a share of K-dependent rounding (1 is suspicious)."""
    rows = torch.randint(0, a.shape[0], (min(256, a.shape[0]),), device="cuda")
    want = a[rows].double() @ b.double().T
    scale = (a[rows].double().abs() @ b.double().abs().T) * 2.0**-20 + want.abs() * 2.0 ** (
        -10 if c.dtype == torch.float16 else -7
    )
    return float(((c[rows].double() - want).abs() / (scale + 1e-6)).max())


def measure(
    contestants: list[Contestant],
    shape: tuple[int, int, int],
    dtype: str,
    options: argparse.Namespace,
    *,
    rest: float = 0.0,
    rounds: int = 1,
) -> list[Measured]:
    """Both regimes of every contestant.  ``rest`` is that of `flushed`; the seconds of steady state come in
    ``rounds`` that each begin with another contestant: a card that grows warm slows down all of them."""
    m, n, k = shape
    generator = torch.Generator(device="cuda").manual_seed(options.seed)
    a = torch.randn(m, k, device="cuda", generator=generator).to(TYPES[dtype])
    b = torch.randn(n, k, device="cuda", generator=generator).to(TYPES[dtype])
    c = torch.empty(m, n, device="cuda", dtype=TYPES[dtype])
    found, able = [], []
    for contestant in contestants:
        result = Measured(contestant.name, shape, dtype)
        found.append(result)
        try:
            c.fill_(float("nan"))
            contestant.run(a, b, c)
            torch.cuda.synchronize()
            result.error = error_of(a, b, c)
            able.append((contestant, result))
        except Exception as e:
            result.failed = f"{type(e).__name__}: {e}".splitlines()[0]
    series = flushed([x for x, _ in able], (a, b, c), options.repeats, rest)
    for (_, result), samples in zip(able, series, strict=True):
        result.samples_us = samples
        result.flushed_us = median(samples)
        # A card that grows warm slows down all contestants: each round is judged by itself.
        result.flushed_ratio = median(first / mine for first, mine in zip(series[0], samples, strict=True))
    if options.seconds:
        turns: list[list[tuple[float, float, float]]] = [[] for _ in able]
        for i in range(rounds):
            for j in range(len(able)):
                which = (i + j) % len(able)
                contestant, result = able[which]
                time.sleep(options.pause)
                turns[which].append(steady(contestant, (a, b, c), options.seconds / rounds, result.flushed_us))
        for (_, result), of_rounds in zip(able, turns, strict=True):
            result.steady_us, result.sm_clock, result.power = (mean(x) for x in zip(*of_rounds, strict=True))
    for _, result in able:
        result.steady_ratio = found[0].steady_us / result.steady_us
    return found


def report(results: list[Measured]) -> None:
    regime = f"{'us':>9} {'TFLOP/s':>8} {'ratio':>6}"
    print(
        f"{'kernel':40} {'M x N x K':22} {regime} | {regime} {'MHz':>6} {'W':>5} {'error':>6}   (flushed | steady)"
    )
    for r in results:
        shape = " x ".join(map(str, r.shape))
        if r.failed:
            print(f"{r.kernel:40} {shape:22} failed: {r.failed}")
            continue
        print(
            f"{r.kernel:40} {shape:22} {r.flushed_us:9.1f} {r.tflops(r.flushed_us):8.0f} {r.flushed_ratio:6.3f} | "
            f"{r.steady_us:9.1f} {r.tflops(r.steady_us):8.0f} {r.steady_ratio:6.3f} "
            f"{r.sm_clock:6.0f} {r.power:5.0f} {r.error:6.2f}"
        )
    for name in dict.fromkeys(r.kernel for r in results):
        for regime in ("flushed_ratio", "steady_ratio"):
            ratios = [
                getattr(r, regime) for r in results if r.kernel == name and not math.isnan(getattr(r, regime))
            ]
            if ratios:
                what = regime.replace("_", " ")
                print(f"{name}: {what}, geometric mean of {len(ratios)}: {geometric_mean(ratios):.3f}")


def versions() -> dict[str, Any]:
    """What ran where."""
    p = torch.cuda.get_device_properties(0)
    try:
        query = [
            "nvidia-smi",
            "-i",
            "0",
            "--query-gpu=driver_version,power.limit,clocks.max.sm",
            "--format=csv,noheader",
        ]
        driver = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        driver = "unknown"
    return {
        "tilemma": tm.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": p.name,
        "processors": p.multi_processor_count,
        "driver, power limit, top clock": driver,
        "python": platform.python_version(),
    }


def roofline(results: list[Measured]) -> str:
    """The results (flushed regime) under the card's roof, as SVG: FLOP per byte against TFLOP/s, both log."""
    width, height, left, bottom = 720, 440, 60, 50
    x0, x1, y0, y1 = math.log10(10), math.log10(5000), math.log10(10), math.log10(1500)

    def at(intensity: float, speed: float) -> tuple[float, float]:
        x = left + (math.log10(max(intensity, 10)) - x0) / (x1 - x0) * (width - left - 20)
        y = height - bottom - (math.log10(max(speed, 10)) - y0) / (y1 - y0) * (height - bottom - 20)
        return round(x, 1), round(y, 1)

    ridge = PEAK_TFLOPS / PEAK_TBYTES
    roof = " ".join(
        f"{x},{y}" for x, y in (at(10, 10 * PEAK_TBYTES), at(ridge, PEAK_TFLOPS), at(5000, PEAK_TFLOPS))
    )
    colors = ["#555", "#d33", "#26c", "#283", "#a4a", "#b80"]
    names = list(dict.fromkeys(r.kernel for r in results))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">'
    ]
    lines.append('<rect width="100%" height="100%" fill="white"/>')
    lines.append(f'<polyline points="{roof}" fill="none" stroke="black" stroke-width="1.5"/>')
    for v in (10, 100, 1000):
        (_, y), (x, _) = at(10, v), at(v, 10)
        lines.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{v}</text>')
        lines.append(f'<text x="{x}" y="{height - bottom + 16}" text-anchor="middle">{v}</text>')
    lines.append(
        f'<text x="{width / 2}" y="{height - 14}" text-anchor="middle">FLOP per byte of the arrays</text>'
    )
    turned = f'transform="rotate(-90 14 {height / 2})" text-anchor="middle"'
    lines.append(f'<text x="14" y="{height / 2}" {turned}>TFLOP/s</text>')
    for r in results:
        if r.failed:
            continue
        m, n, k = r.shape
        x, y = at(r.flops / (2.0 * (m * k + n * k + m * n)), r.tflops(r.flushed_us))
        color = colors[names.index(r.kernel) % len(colors)]
        label = f"{r.kernel} {m}x{n}x{k}: {r.tflops(r.flushed_us):.0f} TFLOP/s"
        dot = f'<circle cx="{x}" cy="{y}" r="4" fill="{color}" fill-opacity="0.7">'
        lines.append(f"{dot}<title>{label}</title></circle>")
    for i, name in enumerate(names):
        lines.append(f'<text x="{left + 12}" y="{24 + 15 * i}" fill="{colors[i % len(colors)]}">{name}</text>')
    return "\n".join([*lines, "</svg>"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="+", help="FILE[:NAME][@KEY=VALUE,..]")
    parser.add_argument("--shapes", default="4096,8192", help="comma-separated: N for a cube, or MxNxK")
    parser.add_argument("--dtypes", default="f16", help="comma-separated: f16, bf16")
    parser.add_argument("--repeats", type=int, default=31, help="single launches of each contestant")
    parser.add_argument("--seconds", type=float, default=2.0, help="of steady state; 0 for none")
    parser.add_argument("--pause", type=float, default=0.3, help="seconds of rest before each steady run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arch", help="that the kernels are compiled for; without it, the card's")
    parser.add_argument("--base", default="torch.mm", help="what the ratios refer to: torch.mm, or a kernel")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    info = versions()
    print(json.dumps(info))
    results: list[Measured] = []
    for dtype in options.dtypes.split(","):
        contestants = [Contestant("torch.mm", lambda a, b, c: torch.mm(a, b.T, out=c))]
        base = [] if options.base == "torch.mm" else [options.base]
        kernels = [parse_kernel(k, dtype, info["processors"], options.arch) for k in (*base, *options.kernels)]
        contestants = kernels[: len(base)] + contestants + kernels[len(base) :]
        for shape in map(parse_shape, options.shapes.split(",")):
            results += measure(contestants, shape, dtype, options)
            report(results[-len(contestants) :])
            sys.stdout.flush()
            if options.json:
                data = {"versions": info, "results": [asdict(r) for r in results]}
                options.json.write_text(json.dumps(data, indent=1, default=str))
    report(results)
    if options.svg:
        options.svg.write_text(roofline(results))
    return int(any(r.failed for r in results))


if __name__ == "__main__":
    sys.exit(main())
