"""`ops.matmul` on a GPU: random products, every plan, streams, graphs, threads, libraries."""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilemma import ops, testing
from tilemma.ops import arguments, product, tuning
from tilemma.ops.arguments import Call
from tilemma.ops.candidates import PIPELINED, candidates
from tilemma.ops.operand_layouts import transposed_product
from tilemma.ops.plan import Plan, hardware
from tilemma.runtime import gpu_unavailable_reason
from tilemma.runtime.arrays import describe

pytestmark = pytest.mark.gpu
MISSING = gpu_unavailable_reason()
if MISSING:
    pytest.skip(MISSING, allow_module_level=True)
torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parents[1] / "ops"))
import cases  # noqa: E402
import typed_cases  # noqa: E402

SHAPES = [
    (512, 512, 512),
    (1000, 1000, 1000),
    (16, 4096, 2048),
    (1, 1000, 4096),
    (333, 259, 777),
    (2048, 512, 8192),
    (4095, 4097, 129),
    (64, 64, 16384),
]
HOPPER = torch.cuda.get_device_capability() == (9, 0)


@pytest.mark.parametrize("seed", range(60))
def test_random_products(seed: int) -> None:
    assert cases.run(cases.case(seed), "cuda") <= 1


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random_products_of_types_and_groups(first: int) -> None:
    for seed in range(first, first + 20):
        assert typed_cases.outcome(seed, "cuda", seed % 4 == 1)[1] == ""


def random(*shape: int, kind: Any = torch.float16) -> Any:
    return torch.randn(*shape, device="cuda").to(kind)


def check(a: Any, b: Any, result: Any, **how: Any) -> None:
    wanted = testing.reference("mk,kn->mn", a, b)
    bias, activation = how.get("bias"), how.get("activation")
    if bias is not None:
        wanted = wanted + testing.to_float64(bias)
    if activation:
        wanted = testing.ACTIVATIONS[activation].value(wanted)
    out = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}[result.dtype]
    bound = testing.error_bound(a, b, out=out, bias=bias, activation=activation)
    assert testing.share_of_bound(result, wanted, bound) <= 1


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=str)
def test_shapes(shape: tuple[int, int, int], kind: Any) -> None:
    m, n, k = shape
    a, b, bias = random(m, k, kind=kind), random(n, k, kind=kind).t(), random(n, kind=torch.float32)
    check(a, b, ops.matmul(a, b))
    check(a, b, ops.matmul(a, b, bias=bias, activation="gelu"), bias=bias, activation="gelu")
    check(a, b, ops.matmul(a, b, out_dtype="f32"))


@pytest.mark.skipif(not HOPPER, reason="the pipelined kernel is for sm_90a")
@pytest.mark.parametrize("index", range(len(PIPELINED)))
@pytest.mark.parametrize("split", [1, 3])
def test_every_tile(index: int, split: int) -> None:
    """All tiles, ragged, more tasks than blocks, poisoned results."""
    tile, groups = PIPELINED[index]
    m, n, k = 3 * tile[0] + 8, 2 * tile[1] + 8, 9 * tile[2] + 8
    a, b = random(m, k), random(n, k).t()
    for store in ("tma", "direct") if tile[1] % 64 == 0 and split == 1 else ("direct",):
        plan = Plan(
            "pipelined", tile, groups, stages=3 if tile[0] + tile[1] < 300 else 2, grid=4, split=split, store=store
        )
        out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16)
        problem = arguments.problem(Call(describe(a), describe(b)), describe(out), made=False)
        product.run(problem, plan)
        check(a, b, out)


@pytest.mark.parametrize("layout", range(4))
def test_every_candidate_agrees(layout: int) -> None:
    """Whatever the model might choose for one product is right, and gives the same bits twice."""
    a = random(200, 520).contiguous() if layout % 2 else random(520, 200).t()
    b = random(520, 264) if layout < 2 else random(264, 520).t()
    out = torch.empty(200, 264, device="cuda", dtype=torch.float16)
    problem = arguments.problem(Call(describe(a), describe(b)), describe(out), made=False)
    chosen = {(p.tile, p.split > 1, p.swap, p.cluster): p for p in candidates(problem, hardware(("cuda", 0)))}
    for plan in chosen.values():
        bits = []
        for _ in range(2):
            out.fill_(float("nan"))
            launches, work = tuning.prepared(problem, plan)
            for launch in launches:
                launch()
            torch.cuda.synchronize()
            del work
            bits.append(out.cpu().numpy().tobytes())
        check(a, b, out)
        assert bits[0] == bits[1], plan
    assert transposed_product(problem).swapped != problem.swapped


def test_graph_capture_and_replay() -> None:
    a, b = random(256, 512), random(512, 320)
    ops.matmul(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ops.matmul(a, b)
    a.copy_(random(256, 512))
    graph.replay()
    torch.cuda.synchronize()
    check(a, b, out)


@pytest.mark.parametrize("shape", [(64, 64, 64), (512, 512, 512), (1000, 1000, 1000), (77, 333, 333)], ids=str)
def test_a_chain_reads_what_the_kernel_before_wrote(shape: tuple[int, int, int]) -> None:
    """Blocks start while the kernel before ends: without a wait of their own they would read too early.

    Each product reads and overwrites what others around it use, in a graph and not.
    """
    m, n, k = shape
    first, b = random(m, k), random(k, n).mul_(k**-0.5)
    x, y = torch.empty_like(first), torch.empty_like(first)

    def chain(wait: bool) -> None:
        x.copy_(first)
        for _ in range(8):
            ops.matmul(x, b, out=y)
            if wait:
                torch.cuda.synchronize()
            ops.matmul(y, b, out=x)
            if wait:
                torch.cuda.synchronize()

    chain(True)
    wanted = x.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain(False)
    for run in (lambda: chain(False), graph.replay) * 10:
        x.zero_()
        run()
        assert torch.equal(x, wanted)


def test_streams_are_the_callers() -> None:
    a, b = random(2048, 2048), random(2048, 2048)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        c = torch.ones_like(a)
        first = ops.matmul(a, c)
        second = ops.matmul(first, b, alpha=1 / 2048)
    torch.cuda.current_stream().wait_stream(side)
    check(a, c, first)
    assert second.isfinite().all()


def test_threads_share_a_plan() -> None:
    inputs = [(random(300, 256), random(256, 200)) for _ in range(8)]
    results: list[Any] = [None] * len(inputs)

    def work(i: int) -> None:
        for _ in range(20):
            results[i] = ops.matmul(*inputs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    torch.cuda.synchronize()
    for (a, b), r in zip(inputs, results, strict=True):
        check(a, b, r)


def test_tuned_products_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "MEASURED", 3)
    monkeypatch.setenv("TILEMMA_CACHE", str(tmp_path))
    a, b = random(384, 512), random(640, 512).t()
    check(a, b, ops.matmul(a, b, tune=True))


@pytest.mark.parametrize("library", ["cupy", "jax.numpy"])
def test_other_libraries(library: str) -> None:
    try:
        xp = importlib.import_module(library)
    except ImportError:
        pytest.skip(f"{library} is not installed")
    a, b = np.random.default_rng(0).standard_normal((2, 130, 130)).astype(np.float16)
    result = ops.matmul(xp.asarray(a), xp.asarray(b), activation="relu")
    assert type(result) is type(xp.asarray(a))
    wanted = np.maximum(testing.reference("mk,kn->mn", a, b), 0)
    host = result.get() if hasattr(result, "get") else np.asarray(result)
    assert testing.share_of_bound(host, wanted, testing.error_bound(a, b, activation="relu")) <= 1


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one device")
def test_arrays_decide_the_device() -> None:
    a, b = random(100, 64).to("cuda:1"), random(64, 50).to("cuda:1")
    result = ops.matmul(a, b)
    assert result.device == a.device
    check(a.cpu().numpy(), b.cpu().numpy(), result.cpu())
