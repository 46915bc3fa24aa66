"""Atomic operations on every element type: at a thread level, and at a level of more than a warp, whose threads all
have the old value.  The PTX machine agrees with the CPU reference, and what one refuses the other refuses."""

from __future__ import annotations

import numpy as np
import pytest

from tests.language.test_advice import co, py
from tilemma import dtypes
from tilemma.errors import CompileError
from tilemma.targets.ptx.target import targets

OPERATIONS = ("add", "sub", "exch", "min", "max", "and_", "or_", "xor", "cas")
TYPES = [t for t in dtypes.BY_NAME.values() if t.numpy is not None and t.bits >= 8]
BODY = """for b in parallel(1, level="block"):
    value, wanted = v[0], v[1]
    first = {block}
    o[2, 2] = first
    for g in parallel(2, level="group-2"):
        old = {group}
        for t in parallel(64, level="thread"):
            o[g, t] = old
    for t in parallel(2, level="thread"):
        o[2, t] = {thread}"""


def atomic(operation: str, place: str) -> str:
    arguments = "wanted, v[0]" if operation == "cas" else "v[0]"
    return f"atomic.{operation}({place}, {arguments.replace('wanted', 'v[1]')})"


# Every run takes every second case: each operation on half of the types, each type with half of the operations.
CASES = [
    pytest.param(operation, t, marks=[pytest.mark.slow] * ((i + j) % 2), id=f"{operation}-{t}")
    for i, operation in enumerate(OPERATIONS)
    for j, t in enumerate(TYPES)
]


@pytest.mark.parametrize(("operation", "t"), CASES)
def test_an_operation_on_a_type(operation: str, t: dtypes.DType) -> None:
    parts = {"block": "a[3, 3]", "group": "a[g, 0]", "thread": "a[2, t]"}
    body = BODY.format(**{k: atomic(operation, place) for k, place in parts.items()})
    kernel = py(body, f'a: tm.Global["{t}", 4, 4], o: tm.Global["{t}", 4, 128], v: tm.Global["{t}", 2]')
    start = np.arange(16).reshape(4, 4).astype(t.numpy)
    given = np.array([5, 4]).astype(t.numpy)  # 4: what a[1, 0] holds
    results = []
    for on in (kernel.on("cpu"), *(kernel.on("machine", arch=arch) for arch in targets())):
        a, o = start.copy(), np.zeros((4, 128), t.numpy)
        try:
            on(a, o, given)
        except CompileError as e:
            results.append((e.code, e.remedy))
            continue
        results.append((a.tobytes(), o.tobytes()))
        assert (o[0, :64] == start[0, 0]).all() and (o[1, :64] == start[1, 0]).all() and o[2, 2] == start[3, 3]
    assert len(set(results)) == 1, results
    refused = t.bits < 16 or t.kind == "bool" or (t.is_float and operation in ("and_", "or_", "xor"))
    assert (results[0][0] in ("atomic-type", "bits-of-floats")) == refused


def test_the_compare_of_cas_is_of_bits() -> None:
    """-0 is not 0, and a NaN is equal to itself, on every target."""
    kernel = py(
        'for i in parallel(3, level="block"):\n    atomic.cas(a[i], v[i], 7.0)',
        'a: tm.Global["f32", 3], v: tm.Global["f32", 3]',
    )
    for on in (kernel.on("cpu"), kernel.on("machine", arch="sm_80")):
        a = np.array([0.0, np.nan, 1.0], np.float32)
        on(a, np.array([-0.0, np.nan, 1.0], np.float32))
        assert a.tolist() == [0.0, 7.0, 7.0]


def test_what_is_advised_for_small_elements() -> None:
    """The array of the type that the advice names is accepted, in both languages."""
    for t, wider in (("u8", "s32"), ("f8_e4m3", "f32")):
        text = "parallel b by 1 : block { __atomic_add(a.at(0), v); }"
        for element, code in ((t, "atomic-type"), (wider, "")):
            made = co(text, f"global {element} [4] a, {wider} v")
            if not code:
                made.compile("sm_80")
                continue
            with pytest.raises(CompileError) as caught:
                made.compile("sm_80")
            assert caught.value.code == code and f"an array of {wider}" in caught.value.remedy


def test_old_values_in_a_loop_of_each_instance() -> None:
    """The place in shared memory is written again only after all have read what it held."""
    body = """for b in parallel(1, level="block"):
    for g in parallel(2, level="group-2"):
        for i in foreach(5):
            old = atomic.add(a[g], 1)
            for t in parallel(64, level="thread"):
                o[g, i, t] = old"""
    kernel = py(body, 'a: tm.Global["s32", 2], o: tm.Global["s32", 2, 5, 64]')
    for arch in targets():
        a, o = np.array([0, 10], np.int32), np.zeros((2, 5, 64), np.int32)
        kernel.on("machine", arch=arch)(a, o)
        assert (o == np.arange(5)[None, :, None] + np.array([0, 10])[:, None, None]).all()
        assert a.tolist() == [5, 15]
