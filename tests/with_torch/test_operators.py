"""`torch.ops.tilemma` on CPU tensors: results, gradients, fake tensors, compilation, autocast, vmap, errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import tilemma as tm  # noqa: E402
import tilemma.torch  # noqa: E402
from tilemma import ops  # noqa: E402
from tilemma.errors import LaunchError, TilemmaError  # noqa: E402
from tilemma.torch.operators import TABLE, quantize  # noqa: E402

T = torch.ops.tilemma


def normal(*shape: int, dtype: Any = torch.float64, seed: int = 0, grad: bool = False) -> Any:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)
    return values.to(dtype).requires_grad_(grad)


def whole(*shape: int) -> Any:
    """Integers of 8 bits: opcheck computes with its arguments, and torch has no arithmetic of 8-bit floats."""
    return (2 * normal(*shape)).round().to(torch.int8)


HALF, E4M3 = torch.float16, torch.float8_e4m3fn
PRUNED = tm.sparse.compress(tm.sparse.prune(normal(8, 32, dtype=HALF)))
WEIGHTS = tm.quantize(normal(32, 8, dtype=torch.float32), "s4", 16, zeros=True)
ONE = torch.ones(())
ENDS = torch.tensor([2, 2, 5], dtype=torch.int32)


def calls() -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """A call of each operator, with the operands that can have gradients requiring them."""
    g = {"dtype": HALF, "grad": True}
    metadata = PRUNED.metadata.view(torch.int32)
    return {
        "matmul": ((normal(2, 5, 6, **g), normal(6, 4, **g), None, normal(4, **g)), {"activation": "gelu"}),
        "scaled_matmul": ((whole(5, 16), whole(16, 4), ONE, ONE, normal(4, **g)), {}),
        "sparse_matmul": ((PRUNED.values.clone().requires_grad_(), metadata, 32, normal(32, 6, **g)), {}),
        "mixed_matmul": (
            (normal(3, 32, **g), WEIGHTS.values, WEIGHTS.scales, WEIGHTS.zeros, "s4", 16, normal(8, **g)),
            {"activation": "silu"},
        ),
        "grouped_matmul": ((normal(5, 6, **g), normal(3, 6, 4, **g), ENDS), {}),
        "grouped_outer": ((normal(5, 6, dtype=HALF), normal(5, 4, dtype=HALF), ENDS), {}),
        "gated_matmul": ((normal(2, 5, 6, **g), normal(6, 4, **g), normal(6, 4, seed=1, **g)), {}),
        "conv2d": (
            (normal(1, 5, 6, 8, **g), normal(4, 3, 2, 8, **g), [2, 1], [1, 0], [1, 2], normal(4, **g)),
            {"activation": "relu"},
        ),
        "quantized_matmul": ((normal(5, 16, **g), normal(16, 4, **g), "f8_e4m3", normal(4, **g)), {}),
    }  # fmt: skip


def plain(args: Any) -> tuple[Any, ...]:
    return tuple(x.detach() if torch.is_tensor(x) else x for x in args)


def test_every_operator_has_a_case_and_is_described() -> None:
    assert set(calls()) == set(TABLE)
    page = (Path(__file__).resolve().parents[2] / "docs" / "torch.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in page for name in TABLE if name != "grouped_outer")


@pytest.mark.parametrize("name", TABLE)
def test_opcheck(name: str) -> None:
    args, keywords = calls()[name]
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    # The gradient of a rounding is not the one that autograd of its parts has: it is compared below.
    if name not in ("grouped_outer",):
        checks.append("test_aot_dispatch_dynamic")
    torch.library.opcheck(getattr(T, name).default, args, keywords, test_utils=checks)


def expected(name: str) -> Callable[..., Any]:
    """The same in operators of torch, in float64."""

    def conv(x: Any, w: Any, stride: Any, padding: Any, dilation: Any, bias: Any) -> Any:
        y = torch.nn.functional.conv2d(
            x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), bias, stride, padding, dilation
        )
        return y.permute(0, 2, 3, 1).relu()

    def sparse(values: Any, metadata: Any, k: int, b: Any) -> Any:
        from tilemma.torch.derivatives import columns_of

        whole = torch.zeros(len(values), k, dtype=torch.float64)
        return whole.scatter_add(1, columns_of(values, metadata), values) @ b

    def grouped(a: Any, b: Any, ends: Any) -> Any:
        parts = torch.tensor_split(a, ends.tolist())[:-1]
        return torch.cat([x @ w for x, w in zip(parts, b, strict=True)])

    weights = WEIGHTS.dequantize().double()
    return {
        "matmul": lambda a, b, c, bias: torch.nn.functional.gelu(a @ b + bias),
        "scaled_matmul": lambda a, b, x, y, bias: a.double() @ b.double() + bias,
        "sparse_matmul": sparse,
        "mixed_matmul": lambda a, v, s, z, t, g, bias: torch.nn.functional.silu(a @ weights + bias),
        "grouped_matmul": grouped,
        "gated_matmul": lambda x, gate, up: torch.nn.functional.silu(x @ gate) * (x @ up),
        "conv2d": conv,
        "quantized_matmul": lambda x, w, t, bias: x @ w + bias,
    }[name]  # fmt: skip


@pytest.mark.parametrize("name", [n for n in TABLE if n != "grouped_outer"])
def test_results_and_gradients(name: str) -> None:
    args, keywords = calls()[name]
    wide = [
        x.detach().double().requires_grad_(x.requires_grad) if torch.is_tensor(x) and x.is_floating_point() else x
        for x in args
    ]
    result, wanted = getattr(T, name)(*args, **keywords), expected(name)(*wide)
    near = 0.15 if name == "quantized_matmul" else 0.01
    torch.testing.assert_close(result.double(), wanted, rtol=near, atol=near)
    result.float().pow(2).sum().backward()
    wanted.pow(2).sum().backward()
    seen = 0
    for x, y in zip(args, wide, strict=True):
        if torch.is_tensor(x) and x.requires_grad:
            seen += 1
            scale = float(y.grad.abs().max())
            torch.testing.assert_close(x.grad.double(), y.grad, rtol=2 * near, atol=2 * near * scale)
    assert seen


def test_gradients_of_matmul_are_exact_in_f64() -> None:
    a, b, bias, c = normal(4, 3, grad=True), normal(3, 5, grad=True), normal(5, grad=True), normal(4, 5, grad=True)
    for activation in (None, "relu"):
        options = {"alpha": 0.5, "beta": 2.0, "activation": activation}
        assert torch.autograd.gradcheck(lambda *x, o=options: T.matmul(*x, **o), (a, b, c, bias))
    assert torch.autograd.gradgradcheck(T.matmul, (a, b))
    assert torch.autograd.gradcheck(T.matmul, (normal(2, 4, 3, grad=True), b))
    assert torch.autograd.gradcheck(T.matmul, (normal(2, 4, 3, grad=True), normal(2, 3, 5, grad=True)))
    assert torch.autograd.gradcheck(T.matmul, (normal(4, 3, grad=True), normal(2, 3, 5, grad=True)))


def test_a_gradient_that_is_not_contiguous() -> None:
    a, b = normal(4, 3, grad=True), normal(3, 5, grad=True)
    T.matmul(a, b).t().contiguous().sum().backward()
    T.matmul(a, b).sum().backward()  # an expanded gradient, of stride 0
    assert torch.allclose(a.grad, 2 * b.detach().sum(1).expand(4, 3))


def test_functions_of_ops_are_differentiable() -> None:
    a, b = normal(4, 32, dtype=HALF, grad=True), normal(32, 8, dtype=HALF, grad=True)
    ops.matmul(a, b, activation="silu", out_dtype="f32").sum().backward()
    assert a.grad is not None and b.grad is not None
    x = normal(4, 32, dtype=HALF, grad=True)
    ops.mixed_matmul(x, WEIGHTS).sum().backward()
    ops.gated_matmul(x, b, b).sum().backward()
    ops.sparse_matmul(PRUNED, b).sum().backward()
    assert x.grad is not None
    bias = normal(4, dtype=torch.float32, grad=True)
    ops.scaled_matmul(normal(5, 16, dtype=E4M3), normal(16, 4, dtype=E4M3), 0.5, ONE, bias=bias).sum().backward()
    assert torch.equal(bias.grad, torch.full((4,), 5.0))
    with pytest.raises(LaunchError, match="matmul-gradient"):
        ops.matmul(a, b, out=torch.empty(4, 8, dtype=HALF))
    with pytest.raises(LaunchError, match="matmul-gradient"):
        ops.gated_matmul(x, b, b, alpha=2.0)
    with torch.no_grad():
        assert not ops.matmul(a, b).requires_grad


def test_compiled_whole_without_recompiling_for_each_shape() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        lambda a, b, v: T.matmul(a, b, bias=v, activation="silu") * 2,
        fullgraph=True,
        backend=counter,
        dynamic=True,
    )
    for m, n in ((4, 6), (5, 7), (9, 3)):
        a, b, v = normal(m, 8, grad=True), normal(8, n), normal(n)
        result = compiled(a, b, v)
        assert torch.equal(result, T.matmul(a, b, bias=v, activation="silu") * 2)
        result.sum().backward()
        assert a.grad is not None
    assert counter.frame_count == 1


def test_errors_inside_compiled_code_are_ours() -> None:
    compiled = torch.compile(lambda a, b: T.matmul(a, b), fullgraph=True, backend="aot_eager")
    with pytest.raises(TilemmaError) as error:
        compiled(normal(4, 3), normal(5, 6))
    assert error.value.code == "matmul-shape"
    with pytest.raises(TilemmaError, match="matmul-dtype"):
        compiled(normal(4, 3), normal(3, 6, dtype=HALF))


def test_autocast_and_vmap() -> None:
    a, b = normal(4, 3, dtype=torch.float32, grad=True), normal(3, 5, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = T.matmul(a, b)
    assert result.dtype is torch.bfloat16
    result.sum().backward()
    assert a.grad.dtype is torch.float32
    x, w = normal(2, 4, 3), normal(3, 5)
    assert torch.equal(torch.vmap(T.matmul, (0, None))(x, w), torch.stack([T.matmul(y, w) for y in x]))
    many = torch.vmap(lambda y, v: T.matmul(y, v, activation="relu"), (0, 2))(x, normal(3, 5, 2))
    assert many.shape == (2, 4, 5)
    assert torch.vmap(lambda y: T.matmul(y, w, bias=w[0, :5]))(x).shape == (2, 4, 5)
    rows = torch.vmap(lambda v: T.matmul(x[0], w, None, v))(normal(3, 5))
    assert rows.shape == (3, 4, 5)


def test_transforms_of_torch_func_are_refused() -> None:
    b = normal(3, 5)
    for transform in (torch.func.grad, torch.func.jacrev):
        with pytest.raises(LaunchError, match="torch-transform"):
            transform(lambda a: T.matmul(a, b).sum())(normal(4, 3))
    x = normal(2, 4, 3, grad=True)
    torch.vmap(T.matmul, (0, None))(x, b).sum().backward()
    assert torch.allclose(x.grad, b.sum(1).expand(2, 4, 3))


def test_a_forked_worker_leaves_its_parent_intact() -> None:
    class Products(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, i: int) -> Any:
            return T.matmul(torch.full((2, 2), float(i)), torch.ones(2, 2))

    before = T.matmul(torch.ones(2, 2), torch.ones(2, 2))
    found = list(torch.utils.data.DataLoader(Products(), num_workers=1, multiprocessing_context="fork"))
    assert [float(x[0, 0, 0]) for x in found] == [0, 2, 4, 6]
    assert torch.equal(T.matmul(torch.ones(2, 2), torch.ones(2, 2)), before)


def test_meta_and_empty_tensors_and_mixed_devices() -> None:
    a, b = torch.empty(4, 3, device="meta"), torch.empty(3, 5, device="meta")
    assert T.matmul(a, b).shape == (4, 5) and T.matmul(a, b).device.type == "meta"
    x = normal(0, 3, grad=True)
    T.matmul(x, normal(3, 5)).sum().backward()
    assert x.grad.shape == (0, 3)
    assert torch.equal(T.matmul(normal(4, 0), normal(0, 5)), torch.zeros(4, 5, dtype=torch.float64))
    with pytest.raises(TilemmaError, match="array-devices"):
        T.matmul(normal(4, 3), b)


def test_gradients_that_do_not_exist_are_refused() -> None:
    scale = torch.ones((), requires_grad=True)
    found = T.scaled_matmul(normal(4, 16, dtype=E4M3), normal(16, 4, dtype=E4M3), scale, ONE)
    with pytest.raises(LaunchError, match="matmul-gradient"):
        found.sum().backward()


@pytest.mark.parametrize("type", ["f8_e4m3", "s8"])
def test_weights_that_are_rounded_already(type: str) -> None:
    x, w, bias = normal(5, 16, dtype=HALF, grad=True), normal(16, 4, dtype=HALF), normal(4, dtype=HALF, grad=True)
    values, scales = quantize(w, type, 0)
    args = (x, values, type, bias, scales[0])
    assert torch.equal(T.quantized_matmul(*args), T.quantized_matmul(x, w, type, bias))
    if type == "s8":  # the check itself multiplies, which torch does not do with f8_e4m3
        torch.library.opcheck(T.quantized_matmul.default, args)
    g = torch.randn(5, 4, dtype=HALF)
    found = torch.autograd.grad(T.quantized_matmul(*args), (x, bias), g)
    wanted = g.double() @ (values.double() * scales.double()).t(), g.double().sum(0)
    for got, exact in zip(found, wanted, strict=True):
        torch.testing.assert_close(got.double(), exact, rtol=0.01, atol=0.01)
    with pytest.raises(tm.LaunchError, match="matmul-gradient"):
        T.quantized_matmul(x, values, type, bias, scales[0].requires_grad_()).sum().backward()
