"""The time of one call: single calls with a cold L2 cache, and calls back to back."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from tilemma.atoms import MmaAtom, catalogue
from tilemma.atoms.atom import arch_number
from tilemma.checked import FLAG, checked, function, instance, integer, optional, real
from tilemma.dtypes import dtype
from tilemma.errors import LaunchError
from tilemma.records import record
from tilemma.runtime import Device, cuda_device
from tilemma.runtime.arrays import ArrayRef, describe, library_of, stream_source

# Calls before the first measured one: they compile, load and fill caches.
WARMING = 3
# The L2 cache is emptied by a write of this many times its size.  The write also keeps the device busy while the
# host enqueues the call, so that the events enclose the call alone.
FLUSH = 4


class NothingToReplay(LaunchError):
    code = "graph-library"
    found = "bench: `graph=True` with arrays of {library}"
    expected = "CUDA tensors of torch, whose CUDA graphs capture the call"
    fix = "pass torch tensors, or leave `graph` out"


@record
class Timing:
    """Times of one call in seconds, and the rates that follow.

    ``median``, ``low`` and ``high`` (10th and 90th percentile) are of ``calls`` single calls; ``steady`` is the
    mean of calls back to back.  ``flops`` and ``bytes`` are the work of one call; ``peak_flops`` and
    ``peak_bytes`` what the device could do in a second.
    """

    name: str
    where: str
    median: float
    low: float
    high: float
    calls: int
    flushed: bool
    steady: float | None = None
    flops: float | None = None
    bytes: float | None = None
    peak_flops: float | None = None
    peak_bytes: float | None = None

    @property
    def tflops(self) -> float | None:
        """10^12 operations a second at the median."""
        return None if self.flops is None else self.flops / self.median / 1e12

    @property
    def gbytes(self) -> float | None:
        """10^9 bytes a second at the median."""
        return None if self.bytes is None else self.bytes / self.median / 1e9

    @property
    def roofline(self) -> float | None:
        """The least time that the peaks allow for the work: the larger of its operations' and its bytes' time."""
        work = ((self.flops, self.peak_flops), (self.bytes, self.peak_bytes))
        bounds = [amount / peak for amount, peak in work if amount is not None and peak]
        return max(bounds, default=None)

    def to_json(self) -> dict[str, Any]:
        """The times and rates as JSON-ready data."""
        rates = {"tflops": self.tflops, "gbytes": self.gbytes, "roofline": self.roofline}
        return asdict(self) | rates

    def __str__(self) -> str:
        cold = ", L2 flushed" if self.flushed else ""
        text = f"{self.name} on {self.where}: {_time(self.median)} "
        text += f"({_time(self.low)} to {_time(self.high)}, {self.calls} calls{cold})"
        if self.steady is not None:
            text += f", {_time(self.steady)} back to back"
        if self.tflops is not None:
            text += f", {self.tflops:.3g} TFLOP/s"
        if self.gbytes is not None:
            text += f", {self.gbytes:.4g} GB/s"
        if self.roofline is not None:
            counted = "" if self.peak_flops else "memory's "
            text += f", {self.roofline / self.median:.0%} of the {counted}roofline"
        return text

    __repr__ = __str__


def _time(seconds: float) -> str:
    unit, scale = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if seconds >= s), ("us", 1e-6))
    return f"{seconds / scale:.4g} {unit}"


AMOUNT = optional(real(0, 1e300))


@checked(
    fn=function("a function, followed by its arguments"),
    repeats=integer(1, 1_000_000),
    flush=FLAG,
    graph=FLAG,
    steady=real(0, 3600, "seconds"),
    flops=AMOUNT,
    bytes=AMOUNT,
    name=optional(instance("a text", str)),
)
def bench(
    fn: Callable[..., Any],
    *args: Any,
    repeats: int = 31,
    flush: bool = True,
    graph: bool = False,
    steady: float = 0.2,
    flops: float | None = None,
    bytes: float | None = None,
    compute: str | None = None,
    name: str | None = None,
    **kwargs: Any,
) -> Timing:
    """The time of ``fn(*args, **kwargs)``.

    With CUDA arrays among the arguments the device's events measure, on the current stream of their library:
    ``repeats`` single calls, the L2 cache emptied before each unless ``flush`` is False, then calls back to back
    for ``steady`` seconds (0: none).  ``graph=True`` captures the call in a CUDA graph of torch and measures its
    replay.  Without CUDA arrays the host's clock measures.

    ``flops``: the operations of one call; ``bytes``: its bytes of global memory, by default all arrays once.
    ``compute``: the element type of the products, such as "f16": the peak of its instructions joins the roofline.
    Raises WrongArgumentType, WrongArgument, NothingToReplay, and what ``fn`` raises.
    """
    if compute is not None:
        dtype(compute)
    refs = [describe(x) for x in (*args, *kwargs.values()) if library_of(x)]
    on_device = [r for r in refs if r.device[0] == "cuda"]

    def call() -> Any:
        return fn(*args, **kwargs)

    title = name or getattr(fn, "__name__", None) or type(fn).__name__
    moved = float(sum(_size(r) for r in refs)) if bytes is None and refs else bytes
    if not on_device:
        singles, mean = _on_host(call, repeats, steady)
        return _timing(title, "the host", singles, False, mean, flops, moved)
    device = cuda_device(on_device[0].device[1])
    run = _captured(call, on_device[0]) if graph else call
    singles, mean = _on_device(run, device, stream_source(on_device[0]), repeats, flush, steady)
    peaks = (_peak_flops(device, compute), _peak_bytes(device))
    return _timing(title, str(device), singles, flush, mean, flops, moved, *peaks)


def _timing(
    name: str, where: str, singles: Sequence[float], flushed: bool, steady: float | None, *work: float | None
) -> Timing:
    ordered = sorted(singles)
    low, high = ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]
    return Timing(name, where, statistics.median(ordered), low, high, len(ordered), flushed, steady, *work)


def _size(ref: ArrayRef) -> int:
    count = 1
    for extent in ref.shape:
        count *= extent
    return count * ref.dtype.bits // 8


def _on_host(call: Callable[[], Any], repeats: int, steady: float) -> tuple[list[float], float | None]:
    call()
    singles = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        singles.append(time.perf_counter() - begin)
    if not steady:
        return singles, None
    begin, count = time.perf_counter(), 0
    while not count or time.perf_counter() - begin < steady:
        call()
        count += 1
    return singles, (time.perf_counter() - begin) / count


@contextlib.contextmanager
def _scratch(device: Device, wanted: bool) -> Iterator[Callable[[int], None]]:
    """A function that empties the L2 cache, in order on a stream."""
    if not wanted:
        yield lambda stream: None
        return
    size = FLUSH * max(device.l2_bytes, 1)
    place = device.driver.allocate(size)
    try:
        yield lambda stream: device.driver.fill_async(place, 0, size, stream)
    finally:
        device.driver.free(place)


def _on_device(
    call: Callable[[], Any], device: Device, stream: Callable[[], int], repeats: int, flush: bool, steady: float
) -> tuple[list[float], float | None]:
    for _ in range(WARMING):
        call()
    driver = device.driver
    with device.active(), _scratch(device, flush) as emptied:
        start, stop = driver.event(), driver.event()

        def measured(calls: int) -> float:
            on = stream()
            emptied(on) if calls == 1 else None
            driver.record(start, on)
            for _ in range(calls):
                call()
            driver.record(stop, on)
            return driver.elapsed(start, stop)

        singles = [measured(1) for _ in range(repeats)]
        if not steady:
            return singles, None
        batch = max(2, min(1000, int(0.02 / max(statistics.median(singles), 1e-6))))
        times, begin = [measured(batch)], time.perf_counter()
        while time.perf_counter() - begin < steady:
            times.append(measured(batch))
        # The first half warms up: clocks settle under load.
        kept = times[len(times) // 2 :]
        return singles, sum(kept) / len(kept) / batch


def _captured(call: Callable[[], Any], first: ArrayRef) -> Callable[[], Any]:
    """The replay of a CUDA graph that holds ``call``."""
    if first.library != "torch":
        raise NothingToReplay(library=first.library)
    import torch

    side = torch.cuda.Stream(first.device[1])
    with torch.cuda.stream(side):
        for _ in range(WARMING):
            call()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay  # type: ignore[no-any-return]


def _peak_flops(device: Device, compute: str | None) -> float | None:
    """Operations a second of the fastest dense instruction for ``compute`` at the device's boost clock."""
    if compute is None:
        return None
    wanted, capability = dtype(compute), device.compute_capability
    rates = [
        rate.fma
        for atom in catalogue.values()
        if isinstance(atom, MmaAtom) and atom.a.dtype == wanted and atom.e is None
        for rate in atom.rates
        if arch_number(rate.arch)[0] == 10 * capability[0] + capability[1]
    ]
    return 2.0 * max(rates) * device.sm_count * device.clock_khz * 1e3 if rates else None


def _peak_bytes(device: Device) -> float | None:
    """Bytes a second of the device's memory: two transfers a clock on each line of the bus."""
    ask = device.driver.device_attribute
    khz, bits = ask(device.ordinal, "MEMORY_CLOCK_RATE"), ask(device.ordinal, "GLOBAL_MEMORY_BUS_WIDTH")
    return 2.0 * khz * 1e3 * bits / 8 or None
