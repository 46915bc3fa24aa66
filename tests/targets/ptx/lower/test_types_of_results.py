"""Accumulators stored as every type, and old values of atomics of every type that the hardware has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilemma as tm
from tests.sampling import by_night
from tilemma import dma, dtypes, mma, parallel, shared

STORED = [t.name for t in dtypes.BY_NAME.values() if t.bits >= 8]


@tm.kernel
def multiply(
    a: tm.Global["A", 64, 32], b: tm.Global["A", 16, 32], direct: tm.Global["T", 60, 14],
    through: tm.Global["T", 60, 14], *, A="f16", C="f32", T="f32", LEVEL="group",
):  # fmt: skip
    for _ in parallel(1, level="block"):
        tile = shared(T, 64, 16)
        left, right = (dma.copy(x, to="shared").data for x in (a, b))
        for _ in parallel(1, level=LEVEL):
            mc = mma.fill(0, C)
            mma.row.row(mc, mma.load(left), mma.load(right))
            mma.store(mc, direct.subspan(64, 16).at(0, 0))
            mma.store(mc, tile)
        dma.copy(tile, through.subspan(64, 16).at(0, 0))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("A", "C"), [("f16", "f32"), ("f16", "f16"), ("bf16", "f32")])
def test_an_accumulator_is_stored_as_every_type(A: str, C: str, arch: str, request: pytest.FixtureRequest) -> None:
    """By day half of the types on each target."""
    rng = np.random.default_rng(1)
    operands = [rng.integers(-3, 4, (n, 32)).astype(dtypes.dtype(A).numpy) for n in (64, 16)]
    level = "group-4" if arch == "sm_90a" else "group"
    for t in STORED if by_night(request.config) else STORED[arch == "sm_80" :: 2]:
        results = []
        for target, options in (("cpu", {}), ("machine", {"arch": arch})):
            out = [np.zeros((60, 14), dtypes.dtype(t).numpy) for _ in range(2)]
            multiply.on(target, **options)(*operands, *out, A=A, C=C, T=t, LEVEL=level)
            results += [x.tobytes() for x in out]
        assert len(set(results)) == 1, t


NAMES = ("add", "sub", "exch", "min", "max", "and_", "or_", "xor", "cas")
# PTX ISA, atom: what it has for each type.
HAS = {
    **dict.fromkeys(["s32", "u32", "s64", "u64"], NAMES),
    "f32": ("add", "sub", "exch", "cas"),
    "f64": ("add", "sub", "exch", "cas"),
    "f16": ("add", "sub"),
}


def change(name: str, place: Any) -> Any:
    return getattr(tm.atomic, name)(place, *((3, 5) if name == "cas" else (5,)))


@tm.kernel
def by_threads(x: tm.Global["T", "R", 4], old: tm.Global["T", "R", 4], *, T="s32", NAMES=NAMES):
    for _ in parallel(1, level="block"):
        for t in parallel(4, level="thread"):
            for i, name in enumerate(NAMES):
                old[i, t] = change(name, x[i, t])


@tm.kernel
def by_groups(x: tm.Global["T", "R", 4], old: tm.Global["T", "R", 4], *, T="s32", NAMES=NAMES):
    for _ in parallel(1, level="block"):
        for g in parallel(4, level="group"):
            for i, name in enumerate(NAMES):
                y = change(name, x[i, g])
                # Every lane of the group has the old value: the last one writes it.
                for t in parallel(32, level="thread"):
                    with tm.if_(t == 31):
                        old[i, g] = y


@pytest.mark.parametrize("kernel", [by_threads, by_groups], ids=["threads", "groups"])
@pytest.mark.parametrize("t", HAS)
def test_old_values_of_atomics(t: str, kernel: tm.Kernel) -> None:
    kind = dtypes.dtype(t).numpy
    large = 2**40 + 3 if dtypes.dtype(t).bits == 64 else 1027
    start = np.array([[3, 7, 100, large]] * len(HAS[t])).astype(kind)
    results = []
    for target in ("cpu", "machine"):
        x, old = start.copy(), np.zeros_like(start)
        kernel.on(target)(x, old, T=t, NAMES=HAS[t])
        assert (old == start).all()
        results.append(x.tobytes())
    assert results[0] == results[1]


@pytest.mark.parametrize("name", ["and_", "or_", "xor"])
def test_bits_of_floats_are_refused(name: str) -> None:
    for target in ("cpu", "machine"):
        with pytest.raises(tm.CompileError) as caught:
            by_threads.on(target)(
                np.zeros((1, 4), np.float32), np.zeros((1, 4), np.float32), T="f32", NAMES=(name,)
            )
        assert caught.value.code == "bits-of-floats" and caught.value.span is not None
