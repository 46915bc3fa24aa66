"""`tilemma.torch.Linear` and `convert` on CPU tensors."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch import nn  # noqa: E402
from torch.nn.utils import prune  # noqa: E402

from tilemma.errors import LaunchError  # noqa: E402
from tilemma.torch.layers import KINDS, STORED, Linear, convert  # noqa: E402

FOLLOWED = frozenset(("layer-extent", "layer-kind"))
# The largest error beside the layers as they were, as a share of the largest result.
NEAR = {"bf16": 0.02, "fp8": 0.15, "int8": 0.05, "e4m3": 0.15, "s8": 0.05, "s4": 0.4, "2:4": 1.0}


def network(dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Sequential(nn.Linear(48, 16, bias=False))).to(dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_converted_models(kind: str) -> None:
    before = network()
    after = convert(copy.deepcopy(before), kind)
    assert [type(m) for m in (after[0], after[2][0])] == [Linear, Linear] and f"kind='{kind}'" in repr(after)
    x = torch.randn(2, 3, 64, dtype=torch.bfloat16, requires_grad=True)
    wanted = before(x)
    found = after(x)
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= NEAR[kind] * wanted.abs().max()
    found.float().pow(2).sum().backward()
    assert x.grad is not None and x.grad.abs().sum() > 0
    trained = [n for n, p in after.named_parameters() if n.endswith("weight") and p.grad is not None]
    assert len(trained) == (0 if kind in STORED else 2)


@pytest.mark.parametrize("kind", KINDS)
def test_state_dicts_load_both_ways(kind: str) -> None:
    before = network()
    after = convert(copy.deepcopy(before), kind)
    x = torch.randn(3, 64, dtype=torch.bfloat16)
    state = after.state_dict()
    assert set(state) == set(before.state_dict())
    other = convert(network(), kind)
    for p in other.parameters():
        nn.init.zeros_(p)
    other.load_state_dict(state)
    assert torch.equal(other(x), after(x))
    dense = network()
    dense.load_state_dict(state)
    near = 0.02 if kind in ("bf16", "s4", "2:4") else NEAR[kind]
    assert (dense(x) - after(x)).abs().max() <= near * after(x).abs().max()
    again = convert(network(), kind)
    again.load_state_dict(before.state_dict())
    assert torch.equal(again(x), after(x))
    with pytest.raises(RuntimeError, match="weight"):
        again.load_state_dict({n: v for n, v in state.items() if n != "0.weight"})
    with pytest.raises(RuntimeError, match=r"0\.weight"):
        again.load_state_dict({**state, "0.weight": torch.zeros(3, 3)})


@pytest.mark.parametrize("kind", ["bf16", "fp8"])
def test_training_reaches_the_loss_of_torch(kind: str) -> None:
    """Two layers learn a function of two others; `tests/gpu` runs more and larger steps."""
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 8))
    x = torch.randn(64, 32)
    with torch.no_grad():
        wanted = teacher(x)
    losses = []
    for converted in (False, True):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 8)).to(torch.bfloat16)
        if converted:
            convert(model, kind)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        for _ in range(30):
            loss = (model(x.bfloat16()).float() - wanted).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[1] <= 1.2 * losses[0]


def test_distributed_data_parallel(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(convert(network(), "fp8"))
        model(torch.randn(2, 64, dtype=torch.bfloat16)).sum().backward()
        assert all(p.grad is not None for p in model.parameters())
    finally:
        torch.distributed.destroy_process_group()


def test_what_convert_leaves_and_refuses() -> None:
    class Own(nn.Linear):
        pass

    model = nn.ModuleDict({"own": Own(4, 4), "odd": nn.Linear(7, 4), "fit": nn.Linear(8, 4)})
    model["twice"] = model["fit"]
    convert(model, "2:4")
    assert [type(model[n]) for n in ("own", "odd", "fit")] == [Own, nn.Linear, Linear]
    assert model["twice"] is model["fit"]
    assert isinstance(convert(nn.Linear(4, 4)), Linear)
    for call in (lambda: convert(model, "fp4"), lambda: Linear(4, 4, kind=3), lambda: convert(3)):
        with pytest.raises(LaunchError, match="layer-kind"):
            call()
    with pytest.raises(LaunchError, match="layer-extent") as extent:
        Linear(7, 4, kind="2:4")
    assert "use the kind `bf16` for this layer" in extent.value.remedy
    assert Linear(7, 4, kind="bf16").kind == "bf16"
    for wrong, advice in (
        (lambda: Linear(4, 4, kind="fp9"), "did you mean `fp8`?"),
        (lambda: convert(3), "pass the model first"),
    ):
        with pytest.raises(LaunchError, match="layer-kind") as kind:
            wrong()
        assert advice in kind.value.remedy
    assert Linear(4, 4, kind="fp8").kind == "fp8" and convert(nn.Linear(4, 4), "fp8").kind == "fp8"
    layer = Linear(64, 8, kind="s4")
    assert layer(torch.ones(2, 64, dtype=torch.bfloat16)).shape == (2, 8)


def test_layers_that_compute_more_than_their_class_says_stay() -> None:
    """A hook, a `forward` of the object, or parameters of another kind would be lost."""
    model = nn.ModuleDict({n: nn.Linear(8, 4) for n in ("hook", "own", "norm", "pruned", "plain")})
    model["hook"].register_forward_hook(lambda module, given, found: found + 1)
    model["own"].forward = lambda x: x
    torch.nn.utils.weight_norm(model["norm"])
    prune.l1_unstructured(model["pruned"], "weight", 0.5)
    x = torch.randn(3, 8)
    before = {n: m(x) for n, m in model.items()}
    convert(model, "bf16")
    assert [n for n, m in model.items() if isinstance(m, Linear)] == ["plain"]
    assert all(torch.allclose(m(x), before[n], atol=1e-5) for n, m in model.items())
    hooked = nn.Linear(8, 4)
    hooked.register_forward_pre_hook(lambda module, given: None)
    assert convert(hooked) is hooked


@pytest.mark.parametrize("kind", KINDS)
def test_single_vectors_and_the_weight(kind: str) -> None:
    plain = nn.Linear(64, 24).to(torch.bfloat16)
    layer = Linear.of(plain, kind)
    x = torch.randn(64, dtype=torch.bfloat16)
    assert layer(x).shape == (24,) and torch.equal(layer(x), layer(x[None])[0])
    assert layer(x[None, None]).shape == (1, 1, 24) and layer(x[None][:0]).shape == (0, 24)
    assert layer.weight.shape == (24, 64) and layer.weight.dtype == torch.bfloat16
    again = copy.deepcopy(layer)
    assert torch.equal(again(x), layer(x)) and torch.equal(again.weight, layer.weight)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), layer(x))
    with pytest.raises(AttributeError, match="other"):
        _ = layer.other
    # Models tie weights by assignment.
    tied = nn.Linear(64, 24).to(torch.bfloat16)
    layer.weight = tied.weight
    tied.bias = layer.bias
    assert torch.equal(layer(x), Linear.of(tied, kind)(x))
    if kind in STORED:
        with pytest.raises(RuntimeError, match="shape"):
            layer.weight = nn.Parameter(torch.zeros(3, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_layers_on_the_meta_device(kind: str) -> None:
    """They are made without numbers, which a state dict brings."""
    plain = nn.Sequential(nn.Linear(64, 24)).to(torch.bfloat16)
    wanted = convert(copy.deepcopy(plain), kind)
    x = torch.randn(3, 64, dtype=torch.bfloat16)
    for assign in (False, True):
        with torch.device("meta"):
            empty = convert(nn.Sequential(nn.Linear(64, 24, dtype=torch.bfloat16)), kind)
        made = nn.Sequential(Linear(64, 24, kind=kind, device="meta", dtype=torch.bfloat16))
        assert {n: b.shape for n, b in made.named_buffers()} == {n: b.shape for n, b in wanted.named_buffers()}
        for model in (empty, made):
            if not assign:
                model.to_empty(device="cpu")
            model.load_state_dict(plain.state_dict(), assign=assign)
            assert torch.equal(model(x), wanted(x))


@pytest.mark.parametrize("kind", KINDS)
def test_modules_of_torch_that_read_the_weights_of_their_layers(kind: str) -> None:
    """`TransformerEncoderLayer` reads them where it does not train."""
    torch.manual_seed(0)
    plain = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True).eval().to(torch.bfloat16)
    x = torch.randn(2, 5, 32, dtype=torch.bfloat16)
    with torch.no_grad():
        wanted = plain(x)
        found = convert(copy.deepcopy(plain), kind)(x)
    assert found.shape == wanted.shape and (found - wanted).abs().mean() <= NEAR[kind]


@pytest.mark.parametrize("kind", ["fp8", "e4m3", "s8", "s4", "2:4"])
def test_a_layer_is_compiled_whole(kind: str) -> None:
    model = convert(network(), kind)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 64, dtype=torch.bfloat16)
        assert torch.equal(compiled(x), model(x))


@pytest.mark.parametrize("kind", ["e4m3", "s8"])
def test_weights_kept_in_8_bits(kind: str) -> None:
    plain = nn.Linear(64, 24).to(torch.bfloat16)
    layer, each = Linear.of(plain, kind), Linear.of(plain, {"e4m3": "fp8", "s8": "int8"}[kind])
    x = torch.randn(3, 64, dtype=torch.bfloat16)
    assert torch.equal(layer(x), each(x))
    assert [b.element_size() * b.numel() for b in layer.buffers()] == [64 * 24, 4 * 24]
    values = layer.weight
    layer.half().float().bfloat16()
    # Conversions of the model do not round again.
    assert torch.equal(layer.weight, values) and torch.equal(layer(x), each(x))
    x.requires_grad_()
    layer(x).float().sum().backward()
    wanted = layer.weight.float().sum(0).expand(3, -1)
    assert (x.grad.float() - wanted).abs().max() <= 0.02 * wanted.abs().max()
