"""`torch.ops.tilemma` and layers on a GPU: torch's own checks, transforms, graphs, processes and wrong calls."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from torch import nn  # noqa: E402

import tilemma as tm  # noqa: E402
import tilemma.torch  # noqa: E402
from tilemma import ops  # noqa: E402
from tilemma.errors import LaunchError, TilemmaError  # noqa: E402
from tilemma.torch.layers import KINDS, Linear, convert  # noqa: E402
from tilemma.torch.operators import TABLE  # noqa: E402

pytestmark = pytest.mark.gpu
T = torch.ops.tilemma
HALF, BF16, E4M3 = torch.float16, torch.bfloat16, torch.float8_e4m3fn


def normal(*shape: int, dtype: Any = BF16, grad: bool = False) -> Any:
    return torch.randn(*shape, device="cuda").to(dtype).requires_grad_(grad)


def whole(*shape: int) -> Any:
    """Integers of 8 bits: opcheck computes with its arguments, and torch has no arithmetic of 8-bit floats."""
    return torch.randint(-9, 10, shape, device="cuda", dtype=torch.int8)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()


def calls() -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """A call of each operator, with the operands that can have gradients requiring them."""
    g = {"dtype": HALF, "grad": True}
    pruned = tm.sparse.compress(tm.sparse.prune(normal(64, 64, dtype=HALF)))
    weights = tm.quantize(normal(128, 72, dtype=torch.float32), "s4", 64, zeros=True)
    one = torch.ones((), device="cuda")
    ends = torch.tensor([20, 20, 50], dtype=torch.int32, device="cuda")
    return {
        "matmul": ((normal(2, 17, 24, **g), normal(24, 40, **g), None, normal(40, **g)), {"activation": "gelu"}),
        "scaled_matmul": ((whole(40, 64), whole(32, 64).t(), one, one, normal(32, **g)), {}),
        "sparse_matmul": (
            (pruned.values.clone().requires_grad_(), pruned.metadata.view(torch.int32), 64, normal(64, 40, **g)),
            {},
        ),
        "mixed_matmul": (
            (normal(3, 128, **g), weights.values, weights.scales, weights.zeros, "s4", 64, normal(72, **g)),
            {"activation": "silu"},
        ),
        "grouped_matmul": ((normal(50, 64, **g), normal(3, 64, 40, **g), ends), {}),
        "grouped_outer": ((normal(50, 64, dtype=HALF), normal(50, 40, dtype=HALF), ends), {}),
        "gated_matmul": ((normal(2, 5, 64, **g), normal(64, 48, **g), normal(64, 48, **g)), {}),
        "conv2d": (
            (normal(5, 9, 10, 8, **g), normal(16, 3, 2, 8, **g), [2, 1], [1, 0], [1, 2], normal(16, **g)),
            {"activation": "relu"},
        ),
        "quantized_matmul": (
            (normal(5, 64, **g), normal(32, 64, dtype=HALF).t().requires_grad_(), "s8", normal(32, **g)),
            {},
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_opcheck(name: str) -> None:
    args, keywords = calls()[name]
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    if name != "grouped_outer":
        checks.append("test_aot_dispatch_dynamic")
    torch.library.opcheck(getattr(T, name).default, args, keywords, test_utils=checks)


@pytest.mark.parametrize("name", [n for n in TABLE if n != "grouped_outer"])
def test_compiled_for_any_number_of_rows(name: str) -> None:
    """`torch.compile` keeps each operator whole, forward and backward, and two sizes of rows are one graph."""
    from torch._dynamo.testing import CompileCounterWithBackend

    args, keywords = calls()[name]
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        lambda *x: getattr(T, name)(*x, **keywords) * 2, fullgraph=True, dynamic=True, backend=counter
    )
    rows = {"sparse_matmul": 3, "scaled_matmul": None, "grouped_matmul": None}.get(name, 0)
    for repeat in (1, 2, 3):
        given = list(args)
        if rows is not None:
            x = args[rows].detach()
            longer = torch.cat([x] * repeat, dim=1 if name == "sparse_matmul" else 0)
            given[rows] = longer.requires_grad_(args[rows].requires_grad)
        found = compiled(*given)
        assert torch.equal(found, getattr(T, name)(*given, **keywords) * 2)
        found.float().sum().backward()
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", [n for n in TABLE if n not in ("grouped_outer", "grouped_matmul")])
def test_a_graph_of_a_step(name: str) -> None:
    """A CUDA graph of a call and of its gradients replays them for new values."""
    args, keywords = calls()[name]
    leaves = [x for x in args if torch.is_tensor(x) and x.requires_grad]

    def step() -> list[Any]:
        result = getattr(T, name)(*args, **keywords)
        return [result, *torch.autograd.grad(result.float().pow(2).sum(), leaves)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    with torch.no_grad():
        for x in leaves:
            x.copy_(torch.randn_like(x) / 4)
    graph.replay()
    for x, y in zip(found, step(), strict=True):
        assert torch.equal(x, y)


def test_exact_second_derivatives() -> None:
    f = {"dtype": torch.float64, "grad": True}
    a, b, bias, c = normal(4, 3, **f), normal(3, 5, **f), normal(5, **f), normal(4, 5, **f)
    for activation in (None, "relu"):
        options = {"alpha": 0.5, "beta": 2.0, "activation": activation}
        assert torch.autograd.gradcheck(lambda *x, o=options: T.matmul(*x, **o), (a, b, c, bias))
    assert torch.autograd.gradgradcheck(T.matmul, (a, b))
    assert torch.autograd.gradgradcheck(T.matmul, (normal(2, 4, 3, **f), normal(2, 3, 5, **f)))


def test_autocast() -> None:
    a, b = normal(48, 64, dtype=torch.float32, grad=True), normal(64, 40, dtype=torch.float32, grad=True)
    with torch.autocast("cuda", dtype=BF16):
        found, gated = T.matmul(a, b, activation="silu"), T.gated_matmul(a, b, b)
        image = T.conv2d(normal(1, 8, 8, 8, dtype=torch.float32), normal(8, 3, 3, 8, dtype=torch.float32))
    assert {found.dtype, gated.dtype, image.dtype} == {BF16}
    (found.float().sum() + gated.float().sum()).backward()
    assert a.grad.dtype is b.grad.dtype is torch.float32


def test_vmap() -> None:
    x, w, bias = normal(3, 40, 64), normal(64, 48), normal(3, 48)
    assert torch.equal(torch.vmap(T.matmul, (0, None))(x, w), T.matmul(x, w))
    rows = torch.vmap(lambda y, v: T.matmul(y, w, None, v, activation="relu"))(x, bias)
    for i in range(3):
        assert torch.equal(rows[i], T.matmul(x[i], w, None, bias[i], activation="relu"))
    both = torch.vmap(torch.vmap(T.matmul, (0, None)), (0, None))(normal(2, 3, 8, 64), w)
    assert both.shape == (2, 3, 8, 48)


@pytest.mark.parametrize("kind", ["bf16", "fp8"])
def test_distributed_data_parallel(tmp_path: Path, kind: str) -> None:
    backend = "nccl" if torch.distributed.is_nccl_available() else "gloo"
    where = f"file://{tmp_path}/store"
    torch.distributed.init_process_group(backend, init_method=where, rank=0, world_size=1)
    try:
        plain = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 32)).cuda().to(BF16)
        alone = convert(copy.deepcopy(plain), kind)
        shared = nn.parallel.DistributedDataParallel(convert(plain, kind))
        x = normal(24, 64)
        for model in (alone, shared):
            model(x).float().pow(2).sum().backward()
        for p, q in zip(alone.parameters(), shared.parameters(), strict=True):
            assert torch.equal(p.grad, q.grad)
    finally:
        torch.distributed.destroy_process_group()


def test_a_forked_worker_leaves_the_device_usable() -> None:
    class Products(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, i: int) -> Any:
            return T.matmul(torch.full((2, 2), float(i)), torch.ones(2, 2))

    a, b = normal(100, 64), normal(64, 40)
    before = T.matmul(a, b)
    loader = torch.utils.data.DataLoader(
        Products(), num_workers=2, multiprocessing_context="fork", pin_memory=True
    )
    found = [x.cuda(non_blocking=True) for x in loader]
    assert [float(x[0, 0, 0]) for x in found] == [0, 2, 4, 6]
    assert torch.equal(T.matmul(a, b), before)
    assert torch.equal(T.matmul(a[:50], b, activation="relu"), before[:50].relu())


def test_wrong_calls_are_refused_by_our_errors() -> None:
    a, b = normal(4, 64), normal(64, 8)
    wrong = {
        "array-devices": lambda: T.matmul(a, b.cpu()),
        "matmul-shape": lambda: T.matmul(a, b.t()),
        "matmul-dtype": lambda: T.matmul(a, b.half()),
    }
    for code, call in wrong.items():
        with pytest.raises(TilemmaError) as found:
            call()
        assert found.value.code == code
    with pytest.raises(TilemmaError, match="array-devices"):
        T.matmul(a, torch.empty(64, 8, device="meta", dtype=BF16))
    for backend in ("aot_eager", "inductor"):
        torch._dynamo.reset()
        with pytest.raises(TilemmaError, match="matmul-dtype"):
            torch.compile(lambda x, y: T.matmul(x, y), fullgraph=True, backend=backend)(a, b.half())
    assert torch.isfinite(T.matmul(a, b)).all()


def test_meta_and_empty_tensors() -> None:
    args, keywords = calls()["matmul"]
    meta = [x.detach().to("meta") if torch.is_tensor(x) else x for x in args]
    assert T.matmul(*meta, **keywords).shape == (2, 17, 40)
    for m, n, k in ((0, 8, 16), (8, 0, 16), (8, 8, 0)):
        x, w = normal(m, k, grad=True), normal(k, n, grad=True)
        found = T.matmul(x, w)
        assert found.shape == (m, n) and not found.any()
        found.float().sum().backward()
        assert x.grad.shape == x.shape and w.grad.shape == w.shape
    for kind in KINDS:
        layer = Linear(64, 32, kind=kind, device="cuda", dtype=BF16)
        assert layer(normal(0, 64)).shape == (0, 32), kind
        assert layer(normal(2, 0, 64)).shape == (2, 0, 32), kind


def test_gradients_in_any_layout() -> None:
    """Gradients that are transposed, expanded, or rows of something larger."""
    for name in ("matmul", "gated_matmul", "conv2d", "quantized_matmul", "mixed_matmul"):
        args, keywords = calls()[name]
        leaves = [x for x in args if torch.is_tensor(x) and x.requires_grad]
        result = getattr(T, name)(*args, **keywords)
        g = torch.randn_like(result)
        wanted = torch.autograd.grad(result, leaves, g, retain_graph=True)
        wide = torch.zeros(*g.shape[:-1], 2 * g.shape[-1], device="cuda", dtype=g.dtype)
        wide[..., ::2] = g
        for other in (g.transpose(0, -1).contiguous().transpose(0, -1), wide[..., ::2]):
            assert not other.is_contiguous() or other.numel() == other.shape[-1]
            for x, y in zip(torch.autograd.grad(result, leaves, other, retain_graph=True), wanted, strict=True):
                torch.testing.assert_close(x, y, rtol=0.02, atol=0.02 * float(y.abs().max()))
        result.sum().backward()


@pytest.mark.parametrize("kind", KINDS)
def test_layers_keep_state_compile_and_move(kind: str) -> None:
    plain = nn.Sequential(nn.Linear(128, 96), nn.GELU(), nn.Linear(96, 64, bias=False)).cuda().to(BF16)
    layer = convert(copy.deepcopy(plain), kind)
    x = normal(3, 5, 128)
    other = convert(copy.deepcopy(plain).cpu(), kind)
    for p in other.parameters():
        nn.init.zeros_(p)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.cuda()(x), layer(x))
    dense = copy.deepcopy(plain)
    dense.load_state_dict(layer.state_dict())
    near = {"fp8": 0.15, "int8": 0.05, "e4m3": 0.15, "s8": 0.05}.get(kind, 0.03)
    assert (dense(x) - layer(x)).abs().max() <= near * layer(x).abs().max()
    again = convert(copy.deepcopy(plain), kind)
    again.load_state_dict(plain.state_dict())
    assert torch.equal(again(x), layer(x))
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for rows in (3, 7):
        y = normal(rows, 128)
        torch.testing.assert_close(
            compiled(y), layer(y), rtol=0.02, atol=0.02 * float(layer(y).detach().abs().max())
        )
    same = copy.deepcopy(layer)
    assert torch.equal(same(x), layer(x))


def test_8_bit_products_have_gradients_of_16_bits() -> None:
    x, w = normal(64, 128, grad=True), normal(96, 128, grad=True)
    for kind in ("f8_e4m3", "s8"):
        found = T.quantized_matmul(x, w.t(), kind)
        g = torch.randn_like(found)
        grads = torch.autograd.grad(found, (x, w), g)
        exact = g.double() @ w.detach().double(), g.double().t() @ x.detach().double()
        for got, wanted in zip(grads, exact, strict=True):
            assert got.dtype is BF16
            # As exact as a product of 16 bits, not of 8.
            assert (got.double() - wanted).abs().max() <= 2**-7 * wanted.abs().max()


def test_products_of_a_side_stream_and_of_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    a, b = normal(300, 256), normal(256, 200)
    wanted = T.matmul(a, b)

    def on_a_stream(_: int) -> Any:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found = [T.matmul(a, b) for _ in range(20)]
        stream.synchronize()
        return found

    torch.cuda.synchronize()
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(on_a_stream, range(8)):
            assert all(torch.equal(x, wanted) for x in found)


def test_ops_refuse_out_and_record_gradients() -> None:
    a, b = normal(40, 64, grad=True), normal(64, 48, grad=True)
    ops.matmul(a, b, activation="silu", out_dtype="f32").sum().backward()
    assert a.grad is not None and b.grad is not None
    with pytest.raises(LaunchError, match="matmul-gradient"):
        ops.matmul(a, b, out=torch.empty(40, 48, device="cuda", dtype=BF16))
