"""Triton kernels on the PTX machine.  Without Triton, which is no dependency of the tests, they are skipped."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import tilemma as tm

triton = pytest.importorskip("triton", reason="needs Triton: pip install triton")
tl = pytest.importorskip("triton.language")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
pytest_plugins = ["tilemma.machine.adapters.pytest_fixture"]
F32 = np.float32


@triton.jit
def total(x):
    return tl.sum(x, 0)


@triton.jit
def sums(x, o, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + tl.program_id(0), total(tl.load(x + i, mask=i < n)))


@triton.jit
def affine(x, o, n, scale, shift, flag, pair, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n).to(tl.float32) * scale + shift + pair[0] - pair[1]
    tl.store(o + i, tl.where(flag, v, -v).to(o.dtype.element_ty), mask=i < n)


def random(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(F32)


def test_arrays_are_written_in_place_and_the_verdict_returned() -> None:
    x, o = random(1000), np.zeros(4, F32)
    verdict = tm.machine.triton(sums, schedules=3)[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](
        x, o, 1000, BLOCK=256, num_warps=2
    )
    assert verdict.ok and verdict.schedules == 3
    assert np.allclose(o, np.add.reduceat(x, [0, 256, 512, 768]), atol=1e-4)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float8_e4m3fn"])
def test_numbers_tuples_and_torch_tensors_of_every_type(name: str) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    x = torch.arange(-8, 8).to(getattr(torch, name))
    o = torch.zeros(20, dtype=getattr(torch, name))[2:18]
    tm.machine.triton(affine)[1](x, o, 16, 2.0, 1, False, (3, 5), BLOCK=32)
    assert torch.equal(o.float(), (1 - x.float() * 2).to(x.dtype).float())


def test_arrays_that_overlap_share_memory() -> None:
    both = random(2, 128)
    want = both[0] * 2 + 1
    tm.machine.triton(affine)[1](both[0], both[0, ::1], 128, 2.0, 1.0, True, (0, 0), BLOCK=128)
    assert np.allclose(both[0], want)
    whole = np.arange(64, dtype=F32)
    tm.machine.triton(affine)[1](whole[:40], whole[32:], 32, 1.0, 0.5, True, (0, 0), BLOCK=32)
    assert (whole[32:] == np.arange(32) + 0.5).all() and (whole[:32] == np.arange(32)).all()


def line_of(function: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(function.fn)
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_a_hazard_names_the_line_of_the_kernel() -> None:
    with pytest.raises(tm.machine.HazardError) as caught:
        tm.machine.triton(sums)[4](random(900), np.zeros(4, F32), 1000, BLOCK=256)
    span = caught.value.span
    assert caught.value.code == "out-of-bounds" and span is not None
    assert span.file == __file__ and span.line == line_of(sums, "tl.load")
    assert "tl.load(x + i, mask=i < n)" in caught.value.render()
    verdict = tm.machine.triton(sums, collect=True)[4](random(900), np.zeros(4, F32), 1000, BLOCK=256)
    assert not verdict.ok


@triton.jit
def shift_left(x, i):
    tl.store(x + i, tl.load(x + i + 1))


@triton.jit
def race(x, BLOCK: tl.constexpr):
    shift_left(x, tl.arange(0, BLOCK))


def test_inlined_functions_are_shown_as_a_stack() -> None:
    with pytest.raises(tm.machine.HazardError) as caught:
        tm.machine.triton(race)[1](np.zeros(257, F32), BLOCK=256)
    assert caught.value.code == "race" and caught.value.span.line == line_of(shift_left, "tl.store")
    stack = [n.span.line for n in caught.value.notes if "inlined at" in n.text]
    assert stack == [line_of(race, "shift_left(x")]


@triton.autotune([triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 128})], key=["n"])
@triton.heuristics({"EVEN": lambda a: a["n"] % a["BLOCK"] == 0})
@triton.jit
def tuned(x, o, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i, mask=i < n) + BLOCK, mask=i < n)
    if tl.program_id(0) == 0:
        tl.store(o + n, EVEN)


def test_an_autotuned_kernel_runs_with_its_first_configuration_unless_told() -> None:
    def grid(meta: Any) -> Any:
        return (triton.cdiv(meta["n"], meta["BLOCK"]),)

    for config, block in [(None, 64), (1, 128), (triton.Config({"BLOCK": 32}), 32)]:
        x, o = random(96), np.zeros(97, F32)
        tm.machine.triton(tuned, config=config)[grid](x, o, 96)
        assert (o[:96] == x + block).all() and o[96] == (96 % block == 0)


@triton.jit
def matmul(a, b, c, K, M: tl.constexpr, N: tl.constexpr, BK: tl.constexpr):
    acc = tl.zeros((M, N), tl.float32)
    for k in range(0, K, BK):
        acc += tl.dot(a.load([0, k]), b.load([k, 0]))
    c.store([0, 0], acc.to(tl.float16))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_descriptors_made_on_the_host(arch: str) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    descriptor = pytest.importorskip("triton.tools.tensor_descriptor").TensorDescriptor
    a, b, c = torch.randn(64, 96).half(), torch.randn(96, 64).half(), torch.zeros(64, 64).half()
    passed = [descriptor.from_tensor(t, s) for t, s in ((a, [64, 32]), (b, [32, 64]), (c, [64, 64]))]
    verdict = tm.machine.triton(matmul, arch=arch)[1](*passed, 96, M=64, N=64, BK=32)
    assert torch.allclose(c.float(), a.float() @ b.float(), atol=0.05) and verdict.arch == arch


@triton.jit
def copy(x, o, M: tl.constexpr, N: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [M, N], [N, 1], [32, 32])
    i = tl.program_id(0) * 32
    rows, columns = tl.arange(0, 32)[:, None], tl.arange(0, 32)[None, :]
    tl.store(o + (i + rows) * N + columns, source.load([i, 0]))


def test_descriptors_made_in_the_kernel_and_clusters() -> None:
    x, o = random(64, 32), np.zeros((64, 32), F32)
    assert tm.machine.triton(copy, schedules=2)[2](x, o, M=64, N=32).ok and (o == x).all()
    o[...] = 0
    tm.machine.triton(copy)[2](x, o, M=64, N=32, num_ctas=2)
    assert (o == x).all()


def test_a_real_driver_is_left_as_it_was() -> None:
    from triton.runtime import driver

    before = dict(vars(driver))
    tm.machine.triton(sums)[1](random(256), np.zeros(1, F32), 256, BLOCK=256)
    assert vars(driver) == before


WRONG: list[Any] = [
    lambda: tm.machine.triton(len),
    lambda: tm.machine.triton(sums)(random(9), random(9), 9, BLOCK=16),
    lambda: tm.machine.triton(sums, schedule=3),
    lambda: tm.machine.triton(sums, schedules=0)[1](random(9), random(9), 9, BLOCK=16),
    lambda: tm.machine.triton(sums, arch="h100")[1](random(9), random(9), 9, BLOCK=16),
    lambda: tm.machine.triton(sums)["x"](random(9), random(9), 9, BLOCK=16),
    lambda: tm.machine.triton(sums)[1, 1, 1, 1](random(9), random(9), 9, BLOCK=16),
    lambda: tm.machine.triton(sums)[1](random(9), random(9), BLOCK=16),
    lambda: tm.machine.triton(sums)[1]([1.0], random(9), 9, BLOCK=16),
    lambda: tm.machine.triton(sums)[1](None, random(9), 9, BLOCK=16),
    lambda: tm.machine.triton(sums)[1](random(9), random(9), 9, BLOCK=17),
    lambda: tm.machine.triton(sums)[1](random(9), random(9), 9, BLOCK=16, warps=3),
    lambda: tm.machine.triton(tuned, config=2)[1](random(9), random(9), 9),
    lambda: tm.machine.triton(sums, config=0)[1](random(9), random(9), 9, BLOCK=16),
    lambda: tm.machine.triton(tuned)[1](random(9), random(9), 9, BLOCK=16),
]


@pytest.mark.parametrize("call", WRONG, ids=range(len(WRONG)))
def test_wrong_calls_are_answered_with_our_errors(call: Any) -> None:
    with pytest.raises(tm.TilemmaError):
        call()


def test_the_fixture_runs_launches_on_the_machine(triton_machine: Any) -> None:
    triton_machine.schedules = 2
    x, o = random(96), np.zeros(97, F32)
    tuned[lambda meta: (triton.cdiv(96, meta["BLOCK"]),)](x, o, 96)
    sums[(1,)](x, o[96:], 96, BLOCK=128)
    assert (o[:96] == x + 64).all() and len(triton_machine.verdicts) == 2
    with pytest.raises(tm.machine.HazardError):
        race[(1,)](np.zeros(257, F32), BLOCK=256)
