"""Names and functions that newcomers guess: the refusal shows the formula, and the formula is right."""

import math
import re

import numpy as np
import pytest

import tilemma as tm
from tilemma.errors import TilemmaError
from tilemma.ir import spellings
from tilemma.ir.constructs import FUNCTIONS

PEERS = {
    "elu": lambda x: x if x > 0 else math.expm1(x),
    "erfc": math.erfc,
    "exp10": lambda x: 10**x,
    "hardswish": lambda x: x * min(max(x + 3, 0), 6) / 6,
    "hypot": lambda x: math.hypot(x, x),
    "log10": lambda x: math.log10(x) if x > 0 else math.nan,
    "logsigmoid": lambda x: -math.log1p(math.exp(-x)),
    "mish": lambda x: x * math.tanh(math.log1p(math.exp(x))),
    "relu6": lambda x: min(max(x, 0), 6),
    "trunc": math.trunc,
}


def _refused(do):
    """The text of the error for ``do(tile)`` in a kernel."""
    with pytest.raises(TilemmaError) as e:

        @tm.kernel
        def k(x: tm.Global["f32", 16, 16]):
            for _ in tm.parallel(1, level="block"):
                for _ in tm.parallel(1, level="group"):
                    do(tm.mma.load(x))

        k(np.zeros((16, 16), np.float32))
    assert e.value.code != "front-end-failure"
    return str(e.value)


@pytest.mark.parametrize("name", PEERS)
def test_the_formula_in_place_of_a_name_computes_it(name):
    text = re.findall(r"fix: write `(.*)`", _refused(lambda t: getattr(tm.math, name)(t)))[-1]

    @tm.kernel
    def k(x: tm.Global["f32", 64], y: tm.Global["f32", 64]):
        for i in tm.parallel(64, level="thread"):
            y[i] = eval(text, {"tm": tm, "a": x[i], "b": x[i]})

    x, y = np.linspace(-4, 4, 64, dtype=np.float32), np.empty(64, np.float32)
    k(x, y)
    np.testing.assert_allclose(y, [PEERS[name](float(v)) for v in x], rtol=1e-4, atol=1e-5)


def test_the_formulas_name_functions_of_the_language():
    for text in spellings._FORMULAS.values():
        assert {*re.findall(r"@(\w+)", text)} <= {*FUNCTIONS, "select"}


@pytest.mark.parametrize(
    ("do", "advice"),
    [
        (lambda t: t.map(np.tanh), "tm.math.tanh"),
        (lambda t: t.map("relu"), "tm.math"),
        (lambda t: np.where(t > 0, t, 0), "tm.select(condition, a, b)"),
        (lambda t: np.exp(t), "tm.math.exp"),
        (lambda t: t @ t, "mma.row.row(mc, a, b)"),
        (lambda t: t.to("f16"), '.astype("f16")'),
        (lambda t: t.mean(1), "sum(axis=1)"),
        (lambda t: tm.mma.relu(t), "tm.math.relu(a)"),
        (lambda t: tm.math.gelu(t, approximate="tanh"), "tm.math.gelu(a)"),
    ],
)
def test_a_guess_is_answered_with_the_right_spelling(do, advice):
    assert advice in _refused(do).split("fix:")[-1]


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("t = expf(t);", "`__exp(a)`"),
        ("t = fmaxf(t, 0.0f);", "`__max(a, b)`"),
        ("t = __leaky_relu(t);", "select(a > 0.0, a, a * 0.01)"),
        ("__syncthreads();", "sync.barrier : block;"),
        ("int z = threadIdx.x;", "parallel b by n : block"),
        ("d = t * t;", "frag f32[16, 64] d;"),
        ("parallel q by 4 : warp { }", ": group`"),
    ],
)
def test_a_guess_in_croqtile_is_answered_too(line, advice, tmp_path):
    file = tmp_path / "k.co"
    body = f"t = mma.load x; {line} mma.store t, x;"
    file.write_text(f"__co__ void k(global f32 [16, 16] x) {{ parallel w by 1 : group {{ {body} }} }}")
    with pytest.raises(TilemmaError) as e:
        tm.load(file).k.compile(arch="sm_80")
    assert advice in str(e.value).split("fix:")[-1]


@pytest.mark.parametrize(
    "do, advised",
    [
        (lambda t: t.sum(), "write `t.sum(axis=1)`"),
        (lambda t: t.astype(np.float16), 'write "f16"'),
        (lambda t: t.astype(np.dtype("float16")), 'write "f16"'),
        (lambda t: t.astype(float), 'write "f32"'),
    ],
)
def test_arguments_as_in_numpy(do, advised):
    assert advised in _refused(do)


@pytest.mark.parametrize(
    "namespace, name, form",
    [
        (tm.math, "where", "`tm.select(condition, a, b)`"),
        (tm.math, "clip", "`tm.math.clamp(a, b, c)`"),
        (tm.math, "mean", "t.sum(axis=1)"),
        (tm.mma, "exp", "`tm.math.exp(a)`"),
        (tm.mma, "where", "`tm.select(condition, a, b)`"),
    ],
)
def test_members_of_namespaces(namespace: object, name: str, form: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(form)):
        getattr(namespace, name)
