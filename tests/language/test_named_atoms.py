"""Instructions that a multiply names: used, or refused with one rule in both languages."""

from __future__ import annotations

import numpy as np
import pytest
from test_advice import co, py

from tilemma.atoms import catalogue
from tilemma.dtypes import dtype
from tilemma.errors import CompileError
from tilemma.kernels import Kernel

PARAMS = (
    "global f16 [64, 64] b, global f32 [64, 64] c",
    'b: tm.Global["f16", 64, 64], c: tm.Global["f32", 64, 64]',
)


def kernels(name: str, acc: str = "f32", level: str = "group", rows: int = 64) -> tuple[Kernel, Kernel]:
    one = f"""parallel p by 1 : block {{ s = dma.copy b => shared; parallel g by 1 : {level} {{
      mc = mma.fill.{acc} 0.0f; ma = mma.load s.data.subspan({rows}, 64).at(0, 0); mb = mma.load s.data;
      [[atom({name})]] mma.row.row mc, ma, mb; mma.store mc, c.subspan({rows}, 64).at(0, 0); }} }}"""
    other = f"""for p in parallel(1, level="block"):
    s = dma.copy(b, to="shared")
    for g in parallel(1, level="{level}"):
        mc = mma.fill(0.0, "{acc}")
        ma, mb = mma.load(s.subspan({rows}, 64).at(0, 0)), mma.load(s)
        mma.row.row(mc, ma, mb, atom="{name}")
        mma.store(mc, c.subspan({rows}, 64).at(0, 0))"""
    return co(one), py(other)


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("SM80_16x8x8_F32F16F16F32_TN", "group"),
        ("SM80_16x8x16_F32F16F16F32_TN", "group-4"),
        ("SM90_64x8x16_F32F16F16_SS", "group-4"),
        ("SM90_64x32x16_F32F16F16_RS", "group-4"),
    ],
)
def test_the_named_instruction_alone_is_issued(name: str, level: str) -> None:
    for kernel in kernels(name, level=level):
        compiled = kernel.compile("sm_90a")
        issued = {
            i for i in str(compiled.explain()).replace(",", " ").split() if i.startswith(("SM80_16x8", "SM90_64x"))
        }
        assert {x.removesuffix("_TN") for x in issued} == {name.removesuffix("_TN")}, str(compiled.explain())


@pytest.mark.parametrize(
    ("name", "given", "code", "text"),
    [
        ("SM80_16x8x16_F16F16F16F16_TN", {}, "atom-mismatch", "accumulates in f16, not f32"),
        ("SM80_16x8x16_F32BF16BF16F32_TN", {}, "atom-mismatch", "takes A of bf16, not f16"),
        ("SM80_16x8x16_F32F16F16F32_TN", {"rows": 24}, "atom-mismatch", "M = 24"),
        ("SM90_64x8x16_F32F16F16_SS", {}, "atom-mismatch", "held by `group`"),
        ("SM80_SPARSE_16x8x32_F32F16F16F32_TN", {}, "atom-mismatch", "a sparse A"),
        ("SM80_16x8x16_F32F16F16F33_TN", {}, "no-such-atom", "not in the catalogue"),
        ("SM75_U32x4_LDSM_N", {}, "no-such-atom", "copies"),
        ("SM70_8x8x4_F32F16F16F16_TN", {}, "atom-mismatch", "adds to f16 and returns f32"),
    ],
)
def test_a_misfit_is_refused_with_its_rule(name: str, given: dict[str, int], code: str, text: str) -> None:
    for kernel in kernels(name, **given):
        for arch in ("sm_80", "sm_90a"):
            with pytest.raises(CompileError) as e:
                kernel.compile(arch)
            assert e.value.code == code and text in e.value.render(), e.value.render()


def test_a_target_without_the_instruction_says_so() -> None:
    for kernel in kernels("SM90_64x8x16_F32F16F16_SS", level="group-4"):
        with pytest.raises(CompileError) as e:
            kernel.compile("sm_80")
        assert e.value.code == "no-instruction" and "sm_90a" in e.value.render()


def test_the_reference_refuses_too() -> None:
    import numpy as np

    b, c = np.ones((64, 64), np.float16), np.zeros((64, 64), np.float32)
    for kernel in kernels("SM80_16x8x16_F16F16F16F16_TN"):
        with pytest.raises(CompileError) as e:
            kernel(b, c)
        assert e.value.code == "atom-mismatch"


@pytest.mark.parametrize("acc", ["f16", "f32"])
@pytest.mark.parametrize("majors", ["TN", "TT", "NN", "NT"])
def test_products_of_quad_pairs(majors: str, acc: str) -> None:
    """The form of Volta, by name: all four orders of its operands compute the product, without a hazard."""
    letter = acc.upper()
    rng = np.random.default_rng(1)
    b = rng.integers(-3, 4, (64, 64)).astype(np.float16)
    both = kernels(f"SM70_8x8x4_{letter}F16F16{letter}_{majors}", acc=acc)
    for kernel, target in zip(both, ("machine", "cpu"), strict=True):
        c = np.zeros((64, 64), np.float32)
        kernel.on(target)(b, c)
        assert np.array_equal(c, (b.astype(np.float64) @ b.T).astype(np.float32)), target
        text = str(kernel.compile("sm_90a").explain())
        assert f"SM70_8x8x4_{letter}F16F16{letter}_{majors}" in text


def test_products_of_quad_pairs_are_chosen_by_name_only() -> None:
    for acc in ("f16", "f32"):
        for atom in catalogue.mma("mma.sync", a=dtype("f16"), d=dtype(acc)):
            assert (atom.rank < 0) == atom.name.startswith("SM70_"), atom.name
