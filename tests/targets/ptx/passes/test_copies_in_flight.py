"""The memory of an asynchronous copy's destination is not reused before the copy has completed, read or not."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sampling import examples
from tilemma import croqtile, machine
from tilemma.compiler import compile_kernel, default_facts, with_facts
from tilemma.ir.tile import Alloc
from tilemma.ir.walk import walk

BYTES = 64 * 64 * 2


@st.composite
def flights(draw):
    """(statements, for each buffer the statements at which its copy starts and its data is used last)."""
    count = draw(st.integers(2, 4))
    engines = [draw(st.sampled_from(["tma.copy.async", "tma.copy.async", "dma.copy.async"])) for _ in range(count)]
    read = [draw(st.booleans()) for _ in range(count)]
    events = [("start", n) for n in range(count)] + [("wait", n) for n in range(count)]
    order = draw(st.permutations(events))
    lines, lives = [], {n: [0, 0] for n in range(count)}
    for kind, n in order:
        if kind == "wait":
            # Only what has started is waited for: what the order says later comes first.
            order_of = order.index(("start", n))
            if order_of > order.index((kind, n)):
                continue
        lines.append((kind, n))
    for n in range(count):
        if ("wait", n) not in lines:
            lines.append(("wait", n))
    text = []
    for at, (kind, n) in enumerate(lines):
        if kind == "start":
            lives[n][0] = at
            text.append(f"f{n} = {engines[n]} x.subspan(64, 64).at({n}, 0) => buf{n};")
        else:
            lives[n][1] = at
            text.append(f"wait f{n};")
            if read[n]:
                text.append(f"dma.copy buf{n} => y.subspan(64, 64).at({n}, 0);")
    return count, text, lives, read


def program(count: int, text: list[str]) -> str:
    buffers = " ".join(f"shared f16 [64, 64] buf{n};" for n in range(count))
    return (
        "__co__ void k(global f16 [M, K] x, global f16 [M, K] y) { parallel b by 1 : block { "
        f"{buffers} {' '.join(text)} }} }}"
    )


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(flights(), st.integers(0, 99))
def test_buffers_in_flight_lie_apart(flight, seed):
    count, text, lives, read = flight
    (source,) = croqtile.load(program(count, text), "kernel.co", {}).sources.values()
    kernel = source.build({})
    compiled = compile_kernel(with_facts(kernel, default_facts(kernel)), "sm_90a")
    at = {op.buffer.name: op.offset for op in walk(compiled.kernel.body) if isinstance(op, Alloc)}
    for a, b in itertools.combinations(range(count), 2):
        together = lives[a][0] <= lives[b][1] and lives[b][0] <= lives[a][1]
        assert not together or abs(at[f"buf{a}"] - at[f"buf{b}"]) >= BYTES, (text, at)
    x = np.random.default_rng(seed).integers(0, 9, (64 * count, 64)).astype(np.float16)
    for schedule in ("late", "early"):
        y = np.zeros_like(x)
        (launch,) = compiled.launches
        machine.run(compiled.ptx, launch, {"x": x, "y": y}, seed=seed, schedule=schedule, strict=True)
        for n in range(count):
            assert not read[n] or np.array_equal(y[64 * n : 64 * n + 64], x[64 * n : 64 * n + 64])
