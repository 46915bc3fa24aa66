"""Products that no instruction of the types has: each refusal names the rule, and where the manual has one its
section.  Shapes that public reports found wrong in another compiler: here they compile, and their numbers are right."""

from __future__ import annotations

import re

import numpy as np
import pytest
import test_sparse_products as sparse
from differential import agree, croqtile_kernel, python_kernel
from test_element_types import numbers, programs

import tilemma as tm
from tilemma.arithmetic import sparsity
from tilemma.dtypes import dtype
from tilemma.errors import KINDS, CompileError

WRONG_SUMS = [
    ("bf16", "f16"),
    ("f8_e4m3", "s32"),
    ("s8", "f32"),
    ("f64", "f32"),
    ("tf32", "f16"),
    ("u8", "f16"),
]


def refused(co: str, python: str, arch: str) -> list[CompileError]:
    """The refusals of both languages."""
    found = []
    for kernel in (croqtile_kernel(co), python_kernel(python)):
        with pytest.raises(CompileError) as caught:
            kernel.compile(arch)
        assert caught.value.span is not None and caught.value.remedy
        found.append(caught.value)
    return found


@pytest.mark.parametrize(("t", "d"), WRONG_SUMS)
def test_accumulators_that_a_type_cannot_have(t: str, d: str) -> None:
    a = dtype(t)
    for error in refused(*programs(a, a, dtype(d), "row.row", "group", 32), "sm_90a"):
        assert error.code == "accumulator-type" and all(x in error.render() for x in a.accumulators)


SECOND = """
__co__ void f(global {0} [16, 32] a, global {1} [16, 32] b, global f32 [16, 16] c) {{
  parallel p by 1 : block, g by 1 : group {{
    mc = mma.fill.{2} 0;
    mma.row.row mc, a, a;
    mma.row.row mc, b, b;
    mma.store mc, c;
  }}
}}"""


@pytest.mark.parametrize(("t", "other", "d"), [("f16", "s8", "f32"), ("s8", "f16", "s32"), ("f16", "bf16", "f16")])
def test_each_multiply_into_an_accumulator_takes_its_type(t: str, other: str, d: str) -> None:
    """Also a later one: the reference refuses what no instruction of a GPU sums."""
    kernel = croqtile_kernel(SECOND.format(t, other, d))
    arrays = [numbers(dtype(x), (16, 32), 0) for x in (t, other)] + [np.zeros((16, 16), np.float32)]
    for run in (lambda: kernel.on("cpu")(*arrays), lambda: kernel.compile("sm_80")):
        with pytest.raises(CompileError) as caught:
            run()
        assert caught.value.code == "accumulator-type" and other in str(caught.value)
        assert caught.value.span is not None and caught.value.span.line == 6


@pytest.mark.parametrize(("t", "k", "words"), [("f16", 24, "u8"), ("s8", 16, "u8"), ("tf32", 12, "u8")])
def test_a_k_that_no_sparse_instruction_divides(t: str, k: int, words: str) -> None:
    d = "s32" if t == "s8" else "f32"
    texts = sparse.programs(dtype(t), dtype(t), dtype(d), dtype(words), "row.row", "group", k)
    for error in refused(*texts, "sm_80"):
        text = error.render()
        assert error.code in ("no-instruction", "sparse-metadata"), text
        assert f"K = {k} is no multiple" in text and "PTX ISA, 9.7.14.6" in text


@pytest.mark.parametrize(
    "code",
    ["accumulator-type", "scale-shape", "scale-without-products", "packed-width", "packed-step", "packed-write",
     "packed-load", "packed-use", "packed-major", "packed-extent"],
)  # fmt: skip
def test_the_rule_names_its_manual_and_section(code: str) -> None:
    assert re.search(r"PTX ISA, 9\.7\.|docs/language\.md, ", KINDS[code].expected)


@pytest.mark.parametrize("t", ["f16", "tf32", "s4"])
def test_so_does_the_rule_of_metadata(t: str) -> None:
    assert "PTX ISA, 9.7.14.6.1" in sparsity.rule_of(dtype(t))


def named(text: str, atom: str) -> str:
    if "__co__" in text:
        return re.sub(r"mma\.(row|col)", rf"[[atom({atom})]] mma.\1", text, count=1)
    return text.replace("(mc, ma, mb)", f'(mc, ma, mb, atom="{atom}")', 1)


@pytest.mark.parametrize(
    ("t", "contract", "atom", "rule"),
    [
        ("f8_e4m3", "row.col", "SM90_64x16x32_F32E4M3E4M3_SS_TN", "B of type f8_e4m3 is read K-major only"),
        ("tf32", "col.row", "SM90_64x16x8_F32TF32TF32_SS_TN", "A of type tf32 is read K-major only"),
        ("f16", "row.row", "SM90_64x48x16_F32F16F16_SS", "make N a multiple of 48"),
    ],
)
def test_majorness_and_n_of_a_named_instruction(t: str, contract: str, atom: str, rule: str) -> None:
    co, python = programs(dtype(t), dtype(t), dtype("f32"), contract, "group-4", 32)
    for error in refused(named(co, atom), named(python, atom), "sm_90a"):
        text = error.render()
        assert rule in text and (error.code == "atom-mismatch" or "PTX ISA, 9.7.15.5" in text)


def test_an_n_that_integers_do_not_have() -> None:
    """40 is no N of wgmma for integers: there is no such record, and the compiler takes N = 8 five times."""
    co, python = programs(dtype("s8"), dtype("s8"), dtype("s32"), "row.row", "group-4", 32)
    wide = [x.replace("[16,", "[40,").replace("(16,", "(40,").replace(", 16)", ", 40)").replace("N, 16", "N, 40")
            for x in (co, python)]  # fmt: skip
    for kernel in (croqtile_kernel(wide[0]), python_kernel(wide[1].replace('"s8", 16,', '"s8", 40,'))):
        ptx = kernel.compile("sm_90a").ptx
        assert "m64n40" not in ptx and "wgmma" in ptx
    for error in refused(*(named(x, "SM90_64x40x32_S32S8S8_SS_TN") for x in (co, python)), "sm_90a"):
        assert error.code == "no-such-atom"


@pytest.mark.parametrize("contract", ["row.row", "row.col"])
def test_n_that_is_8_more_than_a_multiple_of_16(contract: str) -> None:
    """The shapes of tile-ai/tilelang#2593 (dense) and #2603 (sparse), and the K tail of #2381."""
    f16, f32 = dtype("f16"), dtype("f32")
    co, python = (
        x.replace("16]", "24]").replace("[16,", "[24,").replace("(16,", "(24,").replace(", 16)", ", 24)")
        .replace('"f16", 16,', '"f16", 24,')
        for x in programs(f16, f16, f32, contract, "group-4", 64)
    )  # fmt: skip
    x, y = numbers(f16, (70, 72), 1), numbers(f16, (44, 72), 2)
    b = np.ascontiguousarray(y.T) if contract == "row.col" else y
    found = agree(co, python, {"a": x, "b": b, "c": np.zeros((70, 44), np.float32)}, ("sm_90a",))
    assert not isinstance(found, str), found
    np.testing.assert_array_equal(found["c"], x.astype(np.float64) @ y.astype(np.float64).T)
    assert "m64n24k16" in croqtile_kernel(co).compile("sm_90a").ptx


@pytest.mark.parametrize("contract", ["row.row", "row.col"])
def test_the_same_of_a_sparse_product(contract: str) -> None:
    f16, f32 = dtype("f16"), dtype("f32")
    co, python = (
        x.replace("16]", "24]").replace("[16,", "[24,").replace("(16,", "(24,").replace(", 16)", ", 24)")
        .replace('"f16", 16,', '"f16", 24,')
        for x in sparse.programs(f16, f16, f32, dtype("u16"), contract, "group-4", 64)
    )  # fmt: skip
    whole, y = tm.sparse.prune(numbers(f16, (70, 128), 1)), numbers(f16, (44, 128), 2)
    stored = tm.sparse.compress(whole, "u16")
    b = np.ascontiguousarray(y.T) if contract == "row.col" else y
    given = {"a": stored.values, "e": stored.metadata, "b": b, "c": np.zeros((70, 44), np.float32)}
    found = agree(co, python, given, ("sm_90a",))
    assert not isinstance(found, str), found
    np.testing.assert_array_equal(found["c"], whole.astype(np.float64) @ y.astype(np.float64).T)
    assert "m64n24k32" in croqtile_kernel(co).compile("sm_90a").ptx
