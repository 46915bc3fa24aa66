"""One lane's registers: every instruction of a warp by its fragments; what lanes print; misuse is refused by rule."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from test_advice import co, py

import tilemma as tm
from tilemma import (
    load_matrix_a,
    load_matrix_b,
    load_matrix_c,
    load_matrix_e,
    mma,
    parallel,
    store_matrix_d,
)
from tilemma.atoms import MmaAtom, catalogue
from tilemma.errors import CompileError
from tilemma.ir.expr import Index, const, substitute, value_of
from tilemma.ir.named_atoms import of_lanes
from tilemma.passes.expand_lane_work import position
from tilemma.testing import random_array

# A product of lanes adds up in place: C and D have one type.
ATOMS = [x for x in catalogue.mma("mma.sync") if of_lanes(x) and x.c.dtype is x.d.dtype]
SPARSE = [x for x in catalogue.mma("mma.sp") if of_lanes(x)]
TARGETS = ("sm_75", "sm_80", "sm_89", "sm_90a", "sm_120a")


@tm.kernel
def by_lanes(
    a: tm.Global["TA", "M", "K"],
    b: tm.Global["TB", "K", "N"],
    c: tm.Global["TC", "M", "N"],
    d: tm.Global["TC", "M", "N"],
    *,
    SHAPE=(16, 8, 16),
    NAME="",
    TA="f16",
    TB="f16",
    TC="f32",
):
    for p in parallel(1, level="block"):
        for t in parallel(32, level="thread"):
            x = load_matrix_a[SHAPE](a, 0, 0, atom=NAME)
            y = load_matrix_b[SHAPE](b, 0, 0, atom=NAME)
            z = load_matrix_c[SHAPE](c, 0, 0, atom=NAME)
            mma.row.col(z, x, y, atom=NAME)
            store_matrix_d[SHAPE](d, z, 0, 0, atom=NAME)


@tm.kernel
def sparse_by_lanes(
    a: tm.Global["TA", "M", "H"],
    e: tm.Global["TE", "M", "E"],
    b: tm.Global["TB", "K", "N"],
    d: tm.Global["TC", "M", "N"],
    *,
    SHAPE=(16, 8, 32),
    NAME="",
    TA="f16",
    TB="f16",
    TC="f32",
    TE="u8",
):
    for p in parallel(1, level="block"):
        for t in parallel(32, level="thread"):
            x, y = load_matrix_a[SHAPE](a, 0, 0, atom=NAME), load_matrix_b[SHAPE](b, 0, 0, atom=NAME)
            w, z = load_matrix_e[SHAPE](e, 0, 0, atom=NAME), load_matrix_c[SHAPE](d, 0, 0, atom=NAME)
            mma.row.col.sp(z, x, y, w, atom=NAME)
            store_matrix_d[SHAPE](d, z, 0, 0, atom=NAME)


def kinds_of(atom: MmaAtom) -> dict[str, str]:
    return {"TA": atom.a.dtype.name, "TB": atom.b.dtype.name, "TC": atom.c.dtype.name}


def operands(atom: MmaAtom) -> tuple[Any, Any, Any, Any]:
    """A, B, C, and the result of the instruction."""
    m, n, k = atom.shape
    a, b, c = (
        random_array(shape, x.dtype.name, i, "small_integers")
        for i, (shape, x) in enumerate((((m, k), atom.a), ((k, n), atom.b), ((m, n), atom.c)))
    )
    wide = a.astype(np.float64), b.astype(np.float64)
    product = wide[0] @ wide[1] if "XOR" not in atom.name else (a[:, None] != b.T[None]).sum(-1)
    return a, b, c, product + c.astype(np.float64)


def sparse_operands(atom: MmaAtom, words: str) -> tuple[Any, Any, Any, Any, Any] | None:
    """Stored A, metadata, B, C, and the result; None where a word describes more columns than K."""
    assert atom.e is not None
    if atom.e.shape[1] % (tm.dtypes.dtype(words).bits // 4):
        return None
    a, b, c, _ = operands(atom)
    whole = tm.sparse.prune(a)
    stored = tm.sparse.compress(whole, words)
    want = whole.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
    return stored.values, stored.metadata, b, c, want


def sparse_cases() -> list[Any]:
    """Every fifteenth by day, so that each type of elements and of words is among them."""
    cases = [(x, words) for words in ("u8", "u16", "u32") for x in SPARSE]
    return [
        pytest.param(*case, marks=[] if i % 15 == 0 else pytest.mark.slow, id=f"{case[0].name}-{case[1]}")
        for i, case in enumerate(cases)
    ]


@pytest.mark.parametrize(("atom", "words"), sparse_cases())
def test_every_sparse_instruction_multiplies_its_fragments(atom: MmaAtom, words: str) -> None:
    found = sparse_operands(atom, words)
    if found is None:
        with pytest.raises(CompileError, match="fields of 4 bits"):
            sparse_by_lanes.compile("sm_90a", SHAPE=atom.shape, NAME=atom.name, TE=words, **kinds_of(atom))
        return
    a, e, b, c, want = found
    arch = next(x for x in TARGETS if atom.runs_on(x))
    for run in (sparse_by_lanes, sparse_by_lanes.on("machine", arch=arch)):
        d = c.copy()
        run(a, e, b, d, SHAPE=atom.shape, NAME=atom.name, TE=words, **kinds_of(atom))
        np.testing.assert_array_equal(d.astype(np.float64), want)


def dense_cases() -> list[Any]:
    """Instructions of packed elements: those of signed 4-bit ones and of bits by day."""
    packed = [x for x in ATOMS if x.a.dtype.bits < 8 and not ("S4S4S32_TN" in x.name[-11:] or "U1" in x.name)]
    return [pytest.param(x, marks=pytest.mark.slow if x in packed else [], id=x.name) for x in ATOMS]


@pytest.mark.parametrize("atom", dense_cases())
def test_every_instruction_multiplies_its_fragments(atom: MmaAtom) -> None:
    """Reference and machine, on the first target that has it."""
    kinds = kinds_of(atom)
    a, b, c, want = operands(atom)
    arch = next(x for x in TARGETS if atom.runs_on(x))
    for run in (by_lanes, by_lanes.on("machine", arch=arch)):
        d = np.zeros_like(c)
        run(a, b, c, d, SHAPE=atom.shape, NAME=atom.name, **kinds)
        np.testing.assert_array_equal(d.astype(np.float64), want)


@pytest.mark.parametrize("atom", ATOMS, ids=lambda x: x.name)
def test_positions_are_those_of_the_record(atom: MmaAtom) -> None:
    lane = Index("lane", const(32))
    for operand in (atom.a, atom.b, atom.c, atom.d):
        for v in range(operand.values):
            row, col = position(operand, lane, v)
            for x in range(32):
                at = tuple(value_of(substitute(e, {"lane": const(x)})) for e in (row, col))
                assert at == operand.coordinates(x, v)


def test_a_target_without_the_instruction_says_so() -> None:
    kinds = {"TA": "f16", "TB": "f16", "TC": "f32", "SHAPE": (16, 8, 16), "NAME": "SM80_16x8x16_F32F16F16F32_TN"}
    with pytest.raises(CompileError) as e:
        by_lanes.compile("sm_75", **kinds)
    assert e.value.code == "atom-mismatch" and "from sm_80 on" in e.value.render()


# ---- what lanes print --------------------------------------------------------------------------------------

ONES_CO = """parallel p by 1 : block, t by 32 : thread {
  local bf16 [8] a{1.0}; local bf16 [4] b{1.0}; local f32 [4] d{0.0};
  [[atom(SM80_16x8x16_F32BF16BF16F32_TN)]] mma.row.row d, a, b;
  println("thread ", t, " : ", d[0], " ", d[1], " ", d[2], " ", d[3]); }"""
ONES_PY = """for p in parallel(1, level="block"):
    for t in parallel(32, level="thread"):
        a, b, d = local("bf16", 8, init=1.0), local("bf16", 4, init=1.0), local("f32", 4, init=0.0)
        mma.row.row(d, a, b, atom="SM80_16x8x16_F32BF16BF16F32_TN")
        tm.print("thread ", t, " : ", d[0], " ", d[1], " ", d[2], " ", d[3])"""
LOADED_CO = """parallel p by 1 : block, t by 32 : thread {
  a = load_matrix_a<16, 8, 16>(A, 0, 0); b = load_matrix_b<16, 8, 16>(B, 0, 0); local f32 [4] d{0.0};
  mma.row.col d, a, b;
  println("thread ", t, " : a: ", a[0], ", ", a[1], ", ", a[2], ", ", a[3], " ", a[4], ", ", a[5], ", ", a[6], ", ",
          a[7], ", b: ", b[0], ", ", b[1], ", ", b[2], ", ", b[3], ", d: ", d[0], " ", d[1], " ", d[2], " ", d[3]); }"""
LOADED_PY = """for p in parallel(1, level="block"):
    for t in parallel(32, level="thread"):
        a, b, d = load_matrix_a[16, 8, 16](A, 0, 0), load_matrix_b[16, 8, 16](B, 0, 0), local("f32", 4, init=0.0)
        mma.row.col(d, a, b)
        tm.print("thread ", t, " : a: ", a[0], ", ", a[1], ", ", a[2], ", ", a[3], " ", a[4], ", ", a[5], ", ", a[6],
                 ", ", a[7], ", b: ", b[0], ", ", b[1], ", ", b[2], ", ", b[3], ", d: ", d[0], " ", d[1], " ", d[2],
                 " ", d[3])"""
MATRICES = (
    "global bf16 [16, 16] A, global bf16 [16, 8] B",
    'A: tm.Global["bf16", 16, 16], B: tm.Global["bf16", 16, 8]',
)


@pytest.mark.parametrize("target", ["cpu", "sm_80", "sm_90a"])
@pytest.mark.parametrize("language", ["co", "py"])
def test_lanes_print_in_order(language: str, target: str, capfd: pytest.CaptureFixture[str]) -> None:
    a = np.arange(256).reshape(16, 16).astype(ml_dtypes.bfloat16)
    b = np.arange(128).reshape(16, 8).astype(ml_dtypes.bfloat16)
    if language == "co":
        kernels = co(ONES_CO, MATRICES[0]), co(LOADED_CO, MATRICES[0])
    else:
        kernels = py(ONES_PY, MATRICES[1]), py(LOADED_PY, MATRICES[1])
    for kernel in kernels:
        (kernel if target == "cpu" else kernel.on("machine", arch=target))(a, b)
    lines = capfd.readouterr().out.splitlines()
    d = a.astype(np.float32) @ b.astype(np.float32)
    assert lines[:32] == [f"thread {t} : 16 16 16 16" for t in range(32)]
    assert lines[32].startswith("thread 0 : a: 0, 1, 128, 129 8, 9, 136, 137, b: 0, 8, 64, 72, d: ")
    assert len(lines) == 64
    for t, line in enumerate(lines[32:]):
        row, col = t // 4, t % 4 * 2
        own = [d[row, col], d[row, col + 1], d[row + 8, col], d[row + 8, col + 1]]
        assert line.endswith(", d: " + " ".join(f"{x:.9g}" for x in own))


# ---- refusals ----------------------------------------------------------------------------------------------

# (code, a word of the rule, the statements in Croqtile, in Python); `b` is f16 [64, 64], `c` f32 [64, 64].
WRONG: dict[str, tuple[str, str, str, str]] = {
    "shape": (
        "no-fragment", "16x8x16",
        "x = load_matrix_a<16, 8, 12>(b, 0, 0);", "x = load_matrix_a[16, 8, 12](b, 0, 0)",
    ),
    "type": (
        "no-fragment", "none has A of f32",
        "x = load_matrix_a<16, 8, 16>(c, 0, 0);", "x = load_matrix_a[16, 8, 16](c, 0, 0)",
    ),
    "name": (
        "no-such-atom", "not in the catalogue",
        "x = load_matrix_a<16, 8, 16>(b, 0, 0, atom = SM80_16x8x16);",
        "x = load_matrix_a[16, 8, 16](b, 0, 0, atom='SM80_16x8x16')",
    ),
    "shape of the name": (
        "atom-mismatch", "16x8x8",
        "x = load_matrix_a<16, 8, 16>(b, 0, 0, atom = SM80_16x8x8_F32F16F16F32_TN);",
        "x = load_matrix_a[16, 8, 16](b, 0, 0, atom='SM80_16x8x8_F32F16F16F32_TN')",
    ),
    "a warpgroup's": (
        "atom-mismatch", "128 threads",
        "x = load_matrix_c<64, 8, 16>(c, 0, 0, atom = SM90_64x8x16_F32F16F16_SS);",
        "x = load_matrix_c[64, 8, 16](c, 0, 0, atom='SM90_64x8x16_F32F16F16_SS')",
    ),
    "a cut tile": (
        "wrong-value", "16 rows",
        "x = load_matrix_a<16, 8, 16>(b.subspan(16, 16).at(1, 0), 8, 0);",
        "x = load_matrix_a[16, 8, 16](b.subspan(16, 16).at(1, 0), 8, 0)",
    ),
    "accumulator": (
        "atom-mismatch", "4 values of f32",
        "x = load_matrix_a<16, 8, 16>(b, 0, 0); y = load_matrix_b<16, 8, 16>(b, 0, 0); local f16 [4] d{0.0}; "
        "[[atom(SM80_16x8x16_F32F16F16F32_TN)]] mma.row.col d, x, y;",
        "x = load_matrix_a[16, 8, 16](b, 0, 0); y = load_matrix_b[16, 8, 16](b, 0, 0); "
        "d = local('f16', 4, init=0.0); mma.row.col(d, x, y, atom='SM80_16x8x16_F32F16F16F32_TN')",
    ),
    "no instruction": (
        "no-fragment", "atom=NAME",
        "local f16 [3] x{0.0}; local f32 [4] d{0.0}; mma.row.col d, x, x;",
        "x = local('f16', 3, init=0.0); d = local('f32', 4, init=0.0); mma.row.col(d, x, x)",
    ),
    "col": (
        "wrong-value", "row.col",
        "x = load_matrix_a<16, 8, 16>(b, 0, 0); y = load_matrix_b<16, 8, 16>(b, 0, 0); local f32 [4] d{0.0}; "
        "mma.col.col d, x, y;",
        "x = load_matrix_a[16, 8, 16](b, 0, 0); y = load_matrix_b[16, 8, 16](b, 0, 0); "
        "d = local('f32', 4, init=0.0); mma.col.col(d, x, y)",
    ),
    "store of other counts": (
        "wrong-value", "4 values",
        "local f32 [8] d{0.0}; store_matrix_d<16, 8, 16>(c, d, 0, 0);",
        "d = local('f32', 8, init=0.0); store_matrix_d[16, 8, 16](c, d, 0, 0)",
    ),
    "a shared operand": (
        "wrong-value", "one lane's values",
        "store_matrix_d<16, 8, 16>(c, c, 0, 0);", "store_matrix_d[16, 8, 16](c, c, 0, 0)",
    ),
    "a lane beyond": (
        "wrong-value", "0 to 31", "c.at(0, t) = __shfl_xor(1.0f, 32);", "c[0, t] = tm.lane.shfl_xor(1.0, 32)",
    ),
    "divergent shuffle": (
        "lane-divergence", "shfl.sync",
        "if (t < 8) { c.at(0, t) = __shfl_xor(1.0f, 1); }",
        "with if_(t < 8):\n            c[0, t] = tm.lane.shfl_xor(1.0, 1)",
    ),
    "divergent loop": (
        "lane-divergence", "vote.sync",
        "foreach i in t { c.at(i, t) = __to<f32>(__ballot(i > 1)); }",
        "for i in foreach(t):\n            c[i, t] = tm.lane.ballot(i > 1).astype('f32')",
    ),
    "divergent by registers": (
        "lane-divergence", "PTX ISA, mma",
        "x = load_matrix_a<16, 8, 16>(b, 0, 0); y = load_matrix_b<16, 8, 16>(b, 0, 0); local f32 [4] d{0.0}; "
        "if (x[0] > 0) { mma.row.col d, x, y; }",
        "x = load_matrix_a[16, 8, 16](b, 0, 0); y = load_matrix_b[16, 8, 16](b, 0, 0); "
        "d = local('f32', 4, init=0.0)\n        with if_(x[0] > 0):\n            mma.row.col(d, x, y)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_misuse_is_refused(what: str) -> None:
    code, text, one, other = WRONG[what]
    made: list[Any] = [
        lambda: co(f"parallel p by 1 : block, t by 32 : thread {{ {one} }}"),
        lambda: py(
            f'for p in parallel(1, level="block"):\n    for t in parallel(32, level="thread"):\n        {other}'
        ),
    ]
    for make in made:
        for arch in ("sm_80", "sm_90a"):
            with pytest.raises(CompileError) as e:
                make().compile(arch)
            assert e.value.code == code and text in e.value.render(), e.value.render()
            assert e.value.span is not None and e.value.remedy


def test_a_shape_that_the_target_lacks() -> None:
    """The product names no instruction, and neither does the advice; followed, it compiles."""
    one = (
        "x = load_matrix_a<16, 8, 16>(b, 0, 0); y = load_matrix_b<16, 8, 16>(b, 0, 0); local f32 [4] d{0.0}; "
        "mma.row.col d, x, y;"
    )
    other = (
        "x, y = load_matrix_a[16, 8, 16](b, 0, 0), load_matrix_b[16, 8, 16](b, 0, 0)\n"
        "        d = local('f32', 4, init=0.0)\n        mma.row.col(d, x, y)"
    )
    kernels = {
        "`load_matrix_a<16, 8, 8>(...)`": lambda text: co(
            f"parallel p by 1 : block, t by 32 : thread {{ {text} c.at(0, t) = d[0]; }}"
        ),
        "`load_matrix_a[16, 8, 8](...)`": lambda text: py(
            f"for p in parallel(1, level='block'):\n    for t in parallel(32, level='thread'):\n        {text}\n"
            "        c[0, t] = d[0]"
        ),
    }
    for text, (advised, make) in zip((one, other), kernels.items(), strict=True):
        with pytest.raises(CompileError) as e:
            make(text).compile("sm_75")
        assert e.value.code == "atom-mismatch" and advised in e.value.remedy
        make(text).compile("sm_80")
        make(text.replace("16, 8, 16", "16, 8, 8")).compile("sm_75")


@pytest.mark.parametrize(("level", "count"), [("group", 2), ("block", 2), ("thread", 48)])
def test_whole_warps_of_lanes(level: str, count: int) -> None:
    one = f"parallel p by 1 : block, t by {count} : {level} {{ c.at(0, t) = __shfl_xor(1.0f, 1); }}"
    other = (
        f'for p in parallel(1, level="block"):\n    for t in parallel({count}, level="{level}"):\n'
        "        c[0, t] = tm.lane.shfl_xor(1.0, 1)"
    )
    if level == "block":
        one = one.replace("parallel p by 1 : block, t", "parallel t")
        other = 'for t in parallel(2, level="block"):\n    c[0, t] = tm.lane.shfl_xor(1.0, 1)'
    for kernel in (co(one), py(other)):
        with pytest.raises(CompileError) as e:
            kernel.compile("sm_80")
        assert e.value.code == "lane-scope" and "multiple of 32" in e.value.render()


def test_conditions_of_whole_warps_are_converged() -> None:
    """The number of the warp, the result of a ballot and uniform loops are the same in all lanes of a warp."""
    body = """parallel p by 1 : block, t by 64 : thread {
      c.at(0, t) = 0.0f;
      if (t / 32 == 1) { c.at(0, t) = __shfl_xor(1.0f * t, 1); }
      some = __ballot(t % 2 == 0);
      if (some != 0) { c.at(1, t) = __to<f32>(__shfl_idx(t, 3)); } }"""
    b, want = np.zeros((64, 64), np.float16), np.zeros((2, 64), np.float32)
    want[0, 32:] = np.arange(32, 64) ^ 1
    want[1] = np.repeat([3, 35], 32)
    for run in (co(body), co(body).on("machine", arch="sm_80")):
        c = np.zeros((64, 64), np.float32)
        run(b, c)
        np.testing.assert_array_equal(c[:2], want)
