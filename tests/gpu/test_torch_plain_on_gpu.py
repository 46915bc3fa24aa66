"""Calls that skip the rest of torch's dispatcher do so only where nothing of torch would have seen them."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from tilemma.torch import registration  # noqa: E402
from tilemma.torch.layers import KINDS, STORED, Linear  # noqa: E402

pytestmark = pytest.mark.gpu


class Seen(TorchDispatchMode):
    """Which operators were called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def layer_of(kind: str) -> tuple[Any, Any]:
    torch.manual_seed(0)
    layer = Linear(64, 32, kind=kind, device="cuda", dtype=torch.bfloat16)
    return layer, torch.randn(6, 64, device="cuda", dtype=torch.bfloat16)


def near(found: Any, wanted: Any) -> bool:
    return bool((found.float() - wanted.float()).abs().max() <= 0.02 * wanted.float().abs().max())


@pytest.mark.parametrize("kind", KINDS)
def test_calls_without_gradients_give_what_recorded_calls_give(kind: str) -> None:
    layer, x = layer_of(kind)
    recorded = layer(x.requires_grad_())
    assert recorded.requires_grad
    x = x.detach()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(layer(x), recorded) and torch.equal(layer(x + 0), recorded)
    assert layer(x).requires_grad == any(p.requires_grad for p in layer.parameters())


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_modes_and_transforms_see_the_operators(kind: str) -> None:
    layer, x = layer_of(kind)
    wanted = layer(x)
    with Seen() as seen:
        assert torch.equal(layer(x), wanted)
    assert any(n.startswith("tilemma.") for n in seen.names)
    graph = make_fx(layer)(x)
    assert any("tilemma" in str(node.target) for node in graph.graph.nodes)
    assert torch.equal(graph(x), wanted)
    assert near(torch.vmap(layer)(x[None].expand(3, -1, -1)), wanted.expand(3, -1, -1))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), wanted)


@torch.no_grad()
def test_the_first_call_may_be_one_of_a_mode() -> None:
    """Tensors that are made in a mode are no plain ones."""
    layer, x = layer_of("bf16")
    for mode in (FakeTensorMode(allow_non_fake_inputs=True), Seen()):
        registration._plain_keys.cache_clear()
        with mode:
            layer(x)
        for _ in range(2):
            with Seen() as seen:
                layer(x)
            assert any(n.startswith("tilemma.") for n in seen.names)
        assert not isinstance(layer(x), FakeTensor)


@torch.no_grad()
def test_autocast_and_lazy_negation() -> None:
    layer, x = layer_of("bf16")
    with torch.autocast("cuda", dtype=torch.float16):
        assert layer(x).dtype == torch.float16
    wide = Linear(64, 32, device="cuda")
    negated = torch.complex(torch.zeros(6, 64, device="cuda"), torch.randn(6, 64, device="cuda")).conj().imag
    assert negated.is_neg()
    assert near(wide(negated), wide(negated.resolve_neg()))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_calls_without_gradients_follow_the_weights(kind: str) -> None:
    layer, x = layer_of(kind)
    for step in range(3):
        fresh = torch.nn.Linear(64, 32, device="cuda", dtype=torch.bfloat16)
        layer(x)
        if step == 0:
            layer.load_state_dict(fresh.state_dict())
        elif kind in STORED:
            layer.weight, layer.bias = fresh.weight, fresh.bias
        elif step == 1:
            layer.weight.data.copy_(fresh.weight), layer.bias.data.copy_(fresh.bias)
        else:
            layer.weight, layer.bias = fresh.weight, fresh.bias
        wanted = Linear.of(fresh, kind)
        assert torch.equal(layer(x), wanted(x))
        y = torch.randn(2, 3, 64, device="cuda", dtype=torch.bfloat16)
        for z in (y, y[:, :2], y.transpose(0, 1), y[:0], y[0, 0]):
            assert layer(z).shape == (*z.shape[:-1], 32) and torch.equal(layer(z), wanted(z.clone()))
    half = layer.to(torch.float16)
    assert near(half(x.half()), layer.cpu().cuda()(x.half()))
