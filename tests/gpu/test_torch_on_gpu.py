"""`tilemma.torch` on a GPU: products in other forms, graphs, compilation, training, a model of Llama's shape."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from torch import nn  # noqa: E402

import tilemma as tm  # noqa: E402
import tilemma.torch  # noqa: E402
from tilemma import ops, testing  # noqa: E402
from tilemma.errors import TilemmaError  # noqa: E402
from tilemma.torch.layers import KINDS, convert  # noqa: E402

pytestmark = pytest.mark.gpu
T = torch.ops.tilemma
HALF, BF16 = torch.float16, torch.bfloat16


def normal(*shape: int, dtype: Any = BF16) -> Any:
    return torch.randn(*shape, device="cuda").to(dtype)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("m, n, k", [(1, 8, 16), (129, 72, 200), (1000, 520, 264), (300, 1025, 129)])
@pytest.mark.parametrize("kind", [("f32", None), ("f32", "tf32"), ("f64", None)], ids=str)
def test_wide_products(kind: tuple[str, str | None], m: int, n: int, k: int) -> None:
    name, compute = kind
    dtype = {"f32": torch.float32, "f64": torch.float64}[name]
    a, b = torch.randn(m, k, device="cuda", dtype=dtype), torch.randn(n, k, device="cuda", dtype=dtype).t()
    for _ in range(2):
        found = ops.matmul(a, b, compute=compute)
    bound = testing.error_bound(a, b, name, name, operands=compute)
    assert testing.share_of_bound(found, testing.reference("mk,kn->mn", a, b), bound) <= 1


def near(found: Any, wanted: Any, share: float = 0.02) -> bool:
    return bool((found.double() - wanted.double()).abs().max() <= share * wanted.double().abs().max())


@pytest.mark.parametrize("m, n, k", [(1, 64, 128), (100, 200, 256), (520, 1032, 512)])
def test_forms(m: int, n: int, k: int) -> None:
    x, gate, up = normal(m, k), normal(k, n), normal(n, k).t()
    silu = torch.nn.functional.silu
    wanted = silu(x.double() @ gate.double()) * (x.double() @ up.double())
    whole = tm.sparse.prune(normal(m, k))
    weights = tm.quantize(normal(k, n, dtype=torch.float32), "s4", 64, zeros=True)
    for _ in range(2):
        assert near(ops.gated_matmul(x, gate, up), wanted)
        assert near(ops.sparse_matmul(tm.sparse.compress(whole), gate), whole.double() @ gate.double())
        assert near(ops.mixed_matmul(x, weights), x.double() @ weights.dequantize().cuda().double())
    for order in (gate, gate.t().contiguous().t()):
        eight = tm.sparse.prune((8 * x).to(torch.int8))
        other = (8 * order).to(torch.int8)
        assert near(ops.sparse_matmul(tm.sparse.compress(eight), other), eight.double() @ other.double())


@pytest.mark.parametrize(
    "r, stride, padding, dilation", [(1, 1, 0, 1), (3, 1, 1, 1), (3, 2, 1, 1), (7, 2, 3, 1), (3, 1, 2, 2)]
)
def test_convolutions(r: int, stride: int, padding: int, dilation: int) -> None:
    x, w, bias = normal(3, 30, 29, 24), normal(40, r, r, 24) / r, normal(40)
    images, filters = x.permute(0, 3, 1, 2).double(), w.permute(0, 3, 1, 2).double()
    wanted = torch.nn.functional.conv2d(images, filters, bias.double(), stride, padding, dilation).relu()
    for _ in range(2):
        found = ops.conv2d(x, w, stride=stride, padding=padding, dilation=dilation, bias=bias, activation="relu")
        assert near(found.permute(0, 3, 1, 2), wanted)


def test_a_graph_and_inductor() -> None:
    a, b = normal(256, 512), normal(512, 128)
    wanted = T.matmul(a, b, activation="gelu")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        T.matmul(a, b, activation="gelu")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = T.matmul(a, b, activation="gelu")
    found.zero_()
    graph.replay()
    assert torch.equal(found, wanted)
    compiled = torch.compile(lambda x: T.matmul(x, b, activation="gelu") + 1, fullgraph=True, dynamic=True)
    for rows in (256, 100):
        assert torch.equal(compiled(a[:rows]), T.matmul(a[:rows], b, activation="gelu") + 1)
    with pytest.raises(TilemmaError):
        torch.compile(lambda x: T.matmul(x, a), fullgraph=True)(normal(3, 4))


def test_gradients_beside_torch() -> None:
    a, b, bias = normal(96, 64), normal(64, 80), normal(80)
    grads = []
    for product in (
        lambda x, w, v: T.matmul(x, w, bias=v, activation="silu"),
        lambda x, w, v: torch.nn.functional.silu(x @ w + v),
    ):
        leaves = [x.clone().requires_grad_() for x in (a, b, bias)]
        product(*leaves).float().pow(2).sum().backward()
        grads.append([x.grad for x in leaves])
    assert all(near(x, y, 0.03) for x, y in zip(*grads, strict=True))


@pytest.mark.parametrize("kind", ["bf16", "fp8"])
def test_two_layers_learn_as_well_as_torch(kind: str) -> None:
    teacher = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 64)).cuda()
    x = torch.randn(512, 256, device="cuda")
    with torch.no_grad():
        wanted = teacher(x)
    losses = []
    for converted in (False, True):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 64)).cuda().to(BF16)
        if converted:
            convert(model, kind)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(200):
            loss = (model(x.to(BF16)).float() - wanted).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[1] <= 1.15 * losses[0], losses


def llama() -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.LlamaConfig(
        hidden_size=512, intermediate_size=1408, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
        vocab_size=2048, max_position_embeddings=512, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).cuda().eval()


@torch.no_grad()
def test_logits_of_a_llama() -> None:
    model = llama()
    tokens = torch.randint(0, 2048, (2, 96), device="cuda")
    exact = copy.deepcopy(model).double()(tokens).logits
    plain = copy.deepcopy(model).to(BF16)
    ours = convert(copy.deepcopy(plain), "bf16")
    errors = [(m(tokens).logits.double() - exact).abs() for m in (plain, ours)]
    assert errors[1].mean() <= 1.1 * errors[0].mean() and errors[1].max() <= 1.3 * errors[0].max()
    # Decode from the cache, a token at a time.
    states = [m(tokens, use_cache=True) for m in (plain, ours)]
    following = states[0].logits[:, -1:].argmax(-1)
    bound = 2 * max(float(e.max()) for e in errors)
    for _ in range(8):
        states = [
            m(following, past_key_values=s.past_key_values, use_cache=True)
            for m, s in zip((plain, ours), states, strict=True)
        ]
        first, second = (s.logits[:, -1].double() for s in states)
        top = first.topk(2, dim=-1).values
        clear = top[:, 0] - top[:, 1] > 2 * bound
        assert torch.equal(first.argmax(-1)[clear], second.argmax(-1)[clear])
        following = first.argmax(-1)[:, None]


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_a_llama(kind: str) -> None:
    model = llama().to(BF16)
    tokens = torch.randint(0, 2048, (1, 64), device="cuda")
    converted = convert(copy.deepcopy(model), kind)
    if kind in ("s4", "2:4"):
        # torch with the same rounded or pruned weights.
        model.load_state_dict(converted.state_dict())
    found, wanted = converted(tokens).logits.float(), model(tokens).logits.float()
    assert torch.isfinite(found).all()
    least = {"fp8": 0.98, "int8": 0.99, "e4m3": 0.98, "s8": 0.99}.get(kind, 0.999)
    assert torch.nn.functional.cosine_similarity(found.flatten(), wanted.flatten(), dim=0) >= least
