"""Integers at the edges of their types: folding, the CPU reference and lowered PTX compute the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
from differential import croqtile_kernel
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilemma as tm
from tests.sampling import examples
from tilemma import dtypes, machine
from tilemma.arithmetic import integers
from tilemma.compiler import decide
from tilemma.ir import usage
from tilemma.ir.builder import Builder
from tilemma.ir.expr import (
    ARITHMETIC,
    BITWISE,
    COMPARISON,
    Binary,
    Cast,
    Const,
    Dim,
    Expr,
    Select,
    Unary,
    substitute,
)
from tilemma.ir.types import BLOCK
from tilemma.launch import MAX_EXTENT, Launch, evaluate
from tilemma.targets.cpu import execute

WIDE = (dtypes.s32, dtypes.u32, dtypes.s64, dtypes.u64)
TYPES = (*WIDE, dtypes.s8, dtypes.u16)
OPERATIONS = (*ARITHMETIC, *BITWISE, *COMPARISON)
LOOP = (1, 8, 3)  # start, stop, step


def edges(t: dtypes.DType) -> list[int]:
    low, high = integers.bounds(t)
    near = (low, low + 1, -1, 0, 1, 2, 3, 31, 32, 33, 63, 64, 1500000000, 2**31, 2**32 + 3, high - 1, high)
    return [x for x in near if low <= x <= high]


@st.composite
def shapes(draw: st.DrawFn, depth: int = 3):
    """An expression but for its leaves: ("leaf", type, which), or an operation over such."""
    t = draw(st.sampled_from(TYPES))
    kind = draw(st.sampled_from(["leaf", "binary", "binary", "binary", "binary", "select", "cast", "unary"]))
    if depth == 0 or kind == "leaf":
        which = draw(st.sampled_from(["index", "parameter", "element", "variable", "number"]))
        return "leaf", t, which, draw(st.sampled_from(edges(t)))
    sub = shapes(depth - 1)
    if kind == "binary":
        return "binary", draw(st.sampled_from(OPERATIONS)), draw(sub), draw(sub)
    if kind == "select":
        return "select", draw(sub), draw(sub), draw(sub)
    if kind == "cast":
        return "cast", t, draw(sub)
    return "unary", draw(st.sampled_from(["neg", "not"])), draw(sub)


class Program:
    """A kernel that stores expressions at each iteration of a loop; `leaves` has the values of names."""

    def __init__(self, given: list, data: st.DataObject) -> None:
        self.values = {t.name: data.draw(st.sampled_from(edges(t))) for t in TYPES}
        self.elements = {t.name: data.draw(st.sampled_from(edges(t))) for t in TYPES}
        b = self.b = Builder("f")
        self.parameters = {t.name: b.scalar_param(f"p_{t.name}", t) for t in TYPES}
        self.inputs = {t.name: b.array_param(f"x_{t.name}", t, [1]) for t in TYPES}
        results = [dtypes.s32 if t.kind == "bool" else t for t in (self.made(s, None)[0].type for s in given)]
        turns = len(range(*LOOP))
        self.outputs = [b.array_param(f"y{i}", t, [turns]) for i, t in enumerate(results)]
        with b.parallel(["p"], [1], BLOCK):
            self.variables = {t.name: b.declare(f"v_{t.name}", b.element(self.inputs[t.name], [0])) for t in TYPES}
            with b.foreach("k", LOOP[1], start=LOOP[0], step=LOOP[2]) as k:
                at = Binary("floordiv", Binary("sub", k.value, Const(LOOP[0])), Const(LOOP[2]))
                self.stored = [self.made(s, k.value) for s in given]
                for y, (e, _) in zip(self.outputs, self.stored, strict=True):
                    b.set_element(y, [at], e)
        self.kernel = b.finish()

    def made(self, shape, k: Expr | None) -> tuple[Expr, Expr]:
        """The expression, and the same with leaves replaced by their values, but the index."""
        index = k or Const(0)
        match shape:
            case ("leaf", t, which, value):
                if which == "index":
                    return index, index
                if which == "number" or k is None:
                    return Const(value, t), Const(value, t)
                source = self.values if which == "parameter" else self.elements
                leaf = {
                    "parameter": lambda: self.parameters[t.name],
                    "element": lambda: self.b.element(self.inputs[t.name], [0]),
                    "variable": lambda: self.variables[t.name],
                }[which]()
                return leaf, Const(source[t.name], t)
            case ("binary", op, a, b):
                (x, p), (y, q) = self.made(a, k), self.made(b, k)
                return Binary(op, x, y), Binary(op, p, q)
            case ("select", c, a, b):
                parts = [self.made(s, k) for s in (c, a, b)]
                conds = [Binary("ne", c, Const(0, c.type)) for c in parts[0]]
                return Select(conds[0], parts[1][0], parts[2][0]), Select(conds[1], parts[1][1], parts[2][1])
            case ("cast", t, a):
                x, p = self.made(a, k)
                return Cast(x, t), Cast(p, t)
            case ("unary", op, a):
                x, p = self.made(a, k)
                return Unary(op, x), Unary(op, p)
        raise AssertionError(shape)

    def arrays(self) -> dict[str, np.ndarray]:
        found = {f"x_{n}": np.array([v], dtypes.dtype(n).numpy) for n, v in self.elements.items()}
        return found | {y.view.base.name: np.zeros(len(range(*LOOP)), y.view.dtype.numpy) for y in self.outputs}

    def scalars(self) -> dict[str, int]:
        return {f"p_{n}": v for n, v in self.values.items()}


def folded(e: Expr) -> int:
    """The value of an expression of constants, by the rules that fold while compiling."""
    match e:
        case Const():
            return int(e.value)
        case Cast():
            return integers.saturate(folded(e.a), e.dtype)
        case Select():
            return integers.wrap(folded(e.a if folded(e.cond) else e.b), e.type)
        case Unary():
            a = folded(e.a)
            return 1 - a if e.type.kind == "bool" else integers.unary(e.op, integers.wrap(a, e.type), e.type)
        case Binary():
            known = [Const(folded(x), x.type) if x.type.kind != "bool" else Const(bool(folded(x)), x.type)
                     for x in (e.a, e.b)]  # fmt: skip
            found = substitute(Binary(e.op, *known), {})
            return folded(binary_of(found, *known)) if not isinstance(found, Const) else int(found.value)
    raise AssertionError(e)


def binary_of(e: Expr, a: Const, b: Const) -> Expr:
    from tilemma.ir.expr import binary

    assert isinstance(e, Binary)
    return binary(e.op, a, b)


@pytest.mark.parametrize("arch", ["sm_80"])
@settings(deadline=None, max_examples=examples(72), suppress_health_check=list(HealthCheck))
@given(data=st.data(), given_=st.lists(shapes(), min_size=6, max_size=12))
def test_every_way_of_computing_gives_the_same(arch: str, data: st.DataObject, given_: list) -> None:
    program = Program(given_, data)
    reference = program.arrays()
    execute(program.kernel, reference, program.scalars(), dims={})
    compiled = decide(program.kernel, arch)
    got = program.arrays()
    machine.run(compiled.ptx, compiled.launch, got | program.scalars())
    for i, (y, (e, known)) in enumerate(zip(program.outputs, program.stored, strict=True)):
        name = y.view.base.name
        wanted = [
            integers.saturate(folded(substitute(known, {"k": Const(k)})), y.view.dtype) for k in range(*LOOP)
        ]
        assert reference[name].tolist() == wanted, ("reference", i, e)
        assert got[name].tolist() == wanted, ("machine", i, e)


def targets(kernel: tm.Kernel):
    yield "cpu", kernel
    for arch in ("sm_80", "sm_90a"):
        yield arch, kernel.on("machine", arch=arch)


@tm.kernel
def wrapping(y: tm.Global["s32", 4], z: tm.Global["s32", 4], u: tm.Global["u32", 4], w: tm.Global["u64", 4]):
    for _ in tm.parallel(1, level="block"):
        x = tm.var(0)
        for i in tm.foreach(4):
            y[i] = (i * 1500000000) // 4
            x += 1000000000
            z[i] = tm.math.max(x, 0)
        for j in tm.foreach(4, unroll=True):
            u[j] = j - 1
            w[j] = j - 2


def test_scalars_wrap_and_stores_stop() -> None:
    """Sums of a loop wrap; a negative number known when compiling is 0 in an unsigned array, as one that is not."""
    for name, kernel in targets(wrapping):
        y, z = (np.zeros(4, np.int32) for _ in range(2))
        u, w = np.zeros(4, np.uint32), np.zeros(4, np.uint64)
        kernel(y, z, u, w)
        assert y.tolist() == [0, 375000000, -323741824, 51258176], name
        assert z.tolist() == [1000000000, 2000000000, 0, 0], name
        assert u.tolist() == [0, 0, 1, 2] and w.tolist() == [0, 0, 0, 1], name


@tm.kernel
def dividing(x: tm.Global["s32", "N"], y: tm.Global["s32", "N"], out: tm.Global["s32", 3, "N"]):
    for i in tm.parallel(x.shape[0], level="block"):
        out[0, i] = x[i] // y[i]
        out[1, i] = x[i] % y[i]
        out[2, i] = tm.cdiv(x[i], y[i])


def test_divisions_by_zero_and_by_minus_one() -> None:
    low = -(2**31)
    pairs = [(7, 0), (-7, 0), (0, 0), (low, -1), (low, 0), (-7, 2), (7, -2), (-7, -2), (low, 3), (6, 3)]
    x, y = (np.array(v, np.int32) for v in zip(*pairs, strict=True))
    wanted = [[integers.binary(op, dtypes.s32)(a, b) for a, b in pairs] for op in ("floordiv", "floormod", "cdiv")]
    for name, kernel in targets(dividing):
        out = np.zeros((3, len(pairs)), np.int32)
        kernel(x, y, out)
        assert out.tolist() == wanted, name


@tm.kernel
def far_tiles(x: tm.Global["s32", 64], at: tm.Global["s32", "N"], out: tm.Global["s32", "N", 16]):
    for i in tm.parallel(at.shape[0], level="block"):
        s = tm.shared("s32", 16)
        tm.dma.copy(x.subspan(16).at(at[i]), s)
        for t in tm.parallel(16, level="thread"):
            out[i, t] = s[t]


def test_tiles_beyond_every_edge_read_as_zero() -> None:
    """The position of a tile does not wrap, although its number times its extent is more than 32 bits."""
    at = np.array([0, 3, 4, -1, 2**27, 2**28, 2**28 + 1, -(2**28), 2**31 - 1, -(2**31)], np.int32)
    x = np.arange(1, 65, dtype=np.int32)
    wanted = np.zeros((len(at), 16), np.int32)
    wanted[0], wanted[1] = x[:16], x[48:]
    for name, kernel in targets(far_tiles):
        out = np.full((len(at), 16), 9, np.int32)
        kernel(x, at, out)
        assert (out == wanted).all(), name


@tm.kernel
def long_steps(out: tm.Global["s32", 8], *, START=0, STOP=2**31 - 1, STEP=2**30):
    for _ in tm.parallel(1, level="block"):
        n = tm.var(0)
        stop = tm.var(STOP)
        for i in tm.foreach(STOP, start=START + n, stop=stop, step=STEP):
            out[n] = i
            n += 1


def test_loops_end_at_the_end_of_the_type() -> None:
    for constants in ({}, {"STEP": 2**31 - 1}, {"START": 2**31 - 3, "STEP": 1}, {"START": -5, "STEP": 2**30}):
        start, step = constants.get("START", 0), constants.get("STEP", 2**30)
        wanted = list(range(start, 2**31 - 1, step))
        for name, kernel in targets(long_steps):
            out = np.full(8, -1, np.int32)
            kernel(out, **constants)
            assert out.tolist() == (wanted + [-1] * 8)[:8], (name, constants)


@tm.kernel
def typed(a: tm.Global["s16", 4], out: tm.Global["s32", 4], *, D=1):
    for p in tm.parallel(4, level="block"):
        out[p] = tm.select(p > 9, p % D, a[p]) << 20


def test_folding_keeps_the_type() -> None:
    a = np.array([1, 2, 3, 4], np.int16)
    for d in (1, 2):
        for name, kernel in targets(typed):
            out = np.zeros(4, np.int32)
            kernel(a, out, D=d)
            assert out.tolist() == (a.astype(np.int64) << 20).tolist(), (name, d)
    types = {typed.build(D=d).body[0].body[0].value.a.type for d in (1, 2)}
    assert types == {dtypes.s32}


@tm.kernel
def one_iteration(out: tm.Global["s32", 4]):
    for _ in tm.parallel(1, level="block"):
        for i in tm.foreach(1):
            for j in tm.foreach(i + 3):
                for k in tm.foreach(j + 1):
                    out[k] = i + tm.ubound(k)


def test_an_index_of_one_iteration_bounds_other_loops() -> None:
    for name, kernel in targets(one_iteration):
        out = np.zeros(4, np.int32)
        kernel(out)
        assert out.tolist() == [3, 3, 3, 0], name


@tm.kernel
def flat(x: tm.Global["u8", "M", "N"], y: tm.Global["u8", "L"]):
    (M, N), (L,) = x.shape, y.shape
    line = x.span_as(M * N)
    for i in tm.parallel(L, level="block"):
        y[i] = line[i]


def test_elements_in_another_shape_are_counted_exactly() -> None:
    """Indices into a reshaped array are 32 bits: a launch with more elements is refused, on every target."""
    for checks in (Launch.from_json(decide(flat.build(), "sm_80").launch).checks, usage.checks(flat.build())):
        plan = [condition for condition, _ in checks]
        fits, too_many = ({"M": m, "N": 65536, "L": 4} for m in (32767, 65536))
        assert all(evaluate(c, fits) for c in plan)
        assert not all(evaluate(c, too_many) for c in plan)


@pytest.mark.parametrize("shape", [(32768, 65536), (65536, 65536), (4, 1024, 1024, 1024), (46341, 46341)])
def test_elements_of_fixed_extents_are_counted_when_compiling(shape: tuple[int, ...]) -> None:
    """As those of extents that a launch gives; the count itself does not wrap."""
    for dims, new in ((shape, [Dim("N"), 4]), (["M", "L"], list(shape)), (shape, list(reversed(shape)))):
        b = Builder("f")
        x = b.array_param("x", dtypes.u8, list(dims))
        with b.parallel(["p"], [1], BLOCK), pytest.raises(tm.TilemmaError, match="fewer than") as caught:
            b.span_as(x, new)
        assert caught.value.code == "too-many-elements"
    b = Builder("f")
    x = b.array_param("x", dtypes.u8, [46340, 46340])
    with b.parallel(["p"], [1], BLOCK):
        assert b.span_as(x, [46340 * 46340]).rank == 1


def test_a_program_with_too_many_elements_is_refused() -> None:
    text = """
    __co__ void f(global u8 [32768, 65536] x, global u8 [4] y) { parallel b by 1 : block {
      line = x.span_as([65536, 32768]);
      y.at(0) = line.at(3, 1);
    } }"""
    with pytest.raises(tm.TilemmaError, match="2147483648 elements") as caught:
        croqtile_kernel(text).build()
    assert caught.value.code == "too-many-elements" and caught.value.span is not None


def test_sizes_of_a_launch_wrap_as_the_kernel_computes_them() -> None:
    m, n = Dim("M"), Dim("N")
    product = Binary("mul", m, n)
    names = {"M": 65536, "N": 65536}
    assert evaluate(usage.size(product), names) == 0
    assert evaluate(usage.size(Binary("div", Binary("sub", m, Const(65543)), Const(2))), names) == -3
    assert evaluate(usage.size(Binary("floordiv", m, Binary("sub", n, Const(65536)))), names) == 0


def test_extents_beyond_the_limit_are_refused() -> None:
    """The same on every target; a broadcast array has the extent without the memory."""
    x = np.broadcast_to(np.zeros(1, np.int32), (MAX_EXTENT + 1,))
    for name, kernel in targets(copied):
        with pytest.raises(tm.LaunchError, match="at most"):
            kernel(x, np.zeros(1, np.int32))
        assert name


@tm.kernel
def copied(x: tm.Global["s32", "N"], y: tm.Global["s32", 1]):
    for _ in tm.parallel(1, level="block"):
        y[0] = x[0]
