"""Split products whose parts are added in the same kernel, on a GPU: right, the same each time, also where blocks
of several kernels share the SMs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tilemma import ops, testing
from tilemma.ops import plans, product
from tilemma.ops.plan import Plan
from tilemma.runtime import gpu_unavailable_reason

pytestmark = pytest.mark.gpu
MISSING = gpu_unavailable_reason()
if MISSING:
    pytest.skip(MISSING, allow_module_level=True)
torch = pytest.importorskip("torch")
if torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("the kernel needs sm_90a", allow_module_level=True)

# As many blocks as SMs that look for the others; fewer blocks than tasks; a cluster; a swapped product.
PLANS = {
    "all at once": Plan("pipelined", (128, 128, 64), 2, stages=6, grid=132, split=8, fused=True),
    "in turns": Plan("pipelined", (64, 64, 64), 1, stages=8, grid=100, split=3, fused=True),
    "pairs": Plan("pipelined", (128, 128, 64), 2, stages=5, grid=66, split=8, cluster=(2, 1), fused=True),
    "swapped": Plan("pipelined", (64, 16, 128), 1, stages=8, grid=132, swap=True, split=4, fused=True),
}
SHAPES = {"swapped": (16, 2048, 4096)}


@pytest.fixture(params=PLANS)
def shape(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int, int]]:
    monkeypatch.setattr(plans, "best", lambda problem, tune=False: PLANS[request.param])
    product._WARM.clear()
    yield SHAPES.get(request.param, (504, 512, 16384))
    product._WARM.clear()


def operands(shape: tuple[int, int, int]) -> tuple[Any, Any]:
    m, n, k = shape
    return torch.randn(m, k, device="cuda").half(), torch.randn(n, k, device="cuda").half().t()


def test_the_result_is_right_and_the_same_each_time(shape: tuple[int, int, int]) -> None:
    a, b = operands(shape)
    bias = torch.randn(shape[1], device="cuda")
    first = ops.matmul(a, b, bias=bias, activation="gelu")
    wanted = testing.ACTIVATIONS["gelu"].value(testing.reference("mk,kn->mn", a, b) + testing.to_float64(bias))
    bound = testing.error_bound(a, b, bias=bias, activation="gelu")
    assert testing.share_of_bound(first, wanted, bound) <= 1
    for _ in range(200):
        assert torch.equal(ops.matmul(a, b, bias=bias, activation="gelu"), first)


def test_threads_on_their_own_streams(shape: tuple[int, int, int]) -> None:
    """Their blocks do not fit on the device together: some wait for others that are not running yet."""
    inputs = [operands(shape) for _ in range(12)]
    wanted = [ops.matmul(a, b) for a, b in inputs]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(i: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                if not torch.equal(ops.matmul(*inputs[i]), wanted[i]):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_graphs_of_one_stream_run_beside_each_other(shape: tuple[int, int, int]) -> None:
    made = []
    for _ in range(4):
        a, b = operands(shape)
        wanted = ops.matmul(a, b)
        out = torch.empty_like(wanted)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(5):
                ops.matmul(a, b, out=out)
        # The operands live as long as their graph: the capture of the next empties torch's cache.
        made.append((graph, out, wanted, torch.cuda.Stream(), (a, b)))
    for _ in range(20):
        for graph, out, _, stream, _ in made:
            with torch.cuda.stream(stream):
                out.zero_()
                graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(out, wanted) for _, out, wanted, _, _ in made)
