"""The sums of the tensor cores: results of an H200, recorded by `bench/proof_sums.py`, and each rule by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tilemma import testing
from tilemma.atoms import catalogue
from tilemma.machine.isa import sums

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
import proof_sums

# "instruction/family": the bits of four rows of the first experiment.
RECORDED = json.loads((Path(__file__).parent / "h200_sums.json").read_text())
NAMES = list(dict.fromkeys(key.split("/")[0] for key in RECORDED))


@pytest.mark.parametrize("name", NAMES)
def test_the_machine_adds_as_an_h200(name: str) -> None:
    atom = catalogue[name]
    for family, x in proof_sums._families(atom):
        first = proof_sums.Operands(x.a[:1], x.b[:1], x.c[:1], x.columns, x.fields)
        found = proof_sums.expected(atom, first)[0, :4].reshape(-1)
        bits = [f"{int(v):x}" for v in found.view(f"u{found.dtype.itemsize}")]
        assert bits == RECORDED[f"{name}/{family}"], family


def added(kind: sums.Kind, a_type: str, d_type: str, products: list[float], c: float = 0.0) -> float:
    from tilemma.dtypes import dtype

    a = np.array([products]).astype(dtype(a_type).numpy)
    ones = np.ones((len(products), 1)).astype(dtype(a_type).numpy)
    held = np.array([[c]]).astype(dtype(d_type).numpy)
    return float(sums.multiply(kind, a, ones, held, a_type, a_type, d_type)[0, 0])


def test_addends_are_cut_below_the_largest() -> None:
    """25 bits below the largest exponent of 16-bit operands, 13 of 8-bit ones in a wgmma."""
    rest = [0.0] * 14
    assert added("mma", "f16", "f32", [1.0, 2.0**-23, *rest]) == 1 + 2.0**-23
    assert added("wgmma", "f16", "f32", [1.0, 2.0**-23, -(2.0**-24), *rest[1:]]) == 1.0  # toward zero
    assert added("wgmma", "f8_e5m2", "f32", [1.0, 2.0**-13, *[0.0] * 30]) == 1 + 2.0**-13
    assert added("wgmma", "f8_e5m2", "f32", [1.0, *[2.0**-14] * 31]) == 1.0
    assert added("mma", "f8_e5m2", "f32", [1.0, *[2.0**-14] * 31]) == 1 + 31 * 2.0**-14


def test_a_step_has_16_products_of_halves_and_8_of_tf32() -> None:
    """Four products of 2^-24 reach the sum together with 1, and not one by one."""
    for t, steps, wanted in (("f16", 16, 1 + 2.0**-22), ("tf32", 8, 1 + 2.0**-22), ("tf32", 16, 1.0)):
        left = np.zeros((1, steps), np.float64)
        left[0, 0], left[0, -4:] = 1.0, 2.0**-12
        right = np.where(left == 1.0, 1.0, 2.0**-12).T
        if steps == 16 and t == "tf32":  # each of the small products in a step of its own
            left[0, -4:] = 0.0
            left[0, 8] = 2.0**-12
        a, b = (x.astype(np.float16 if t == "f16" else np.float32) for x in (left, right))
        zero = np.zeros((1, 1), np.float32)
        assert sums.multiply("mma", a, b, zero, t, t, "f32")[0, 0] == wanted, (t, steps)


def test_a_sum_in_f16_is_rounded_to_nearest_once_a_step() -> None:
    assert added("wgmma", "f16", "f16", [1.0, 2.0**-11, 2.0**-20, *[0.0] * 13]) == 1 + 2.0**-10
    assert added("wgmma", "f16", "f16", [1.0, 2.0**-11, *[0.0] * 14]) == 1.0


@pytest.mark.parametrize(("kind", "t"), [("wgmma", "f8_e4m3"), ("wgmma", "f16"), ("mma", "f16"), ("mma", "tf32")])
@pytest.mark.parametrize("acc", ["f32", "f16"])
def test_sums_are_within_the_bound(kind: sums.Kind, t: str, acc: str) -> None:
    if (t, acc) == ("tf32", "f16"):
        return
    a = testing.random_array((16, 512), t, 1)
    b = testing.random_array((512, 8), t, 2)
    total = np.zeros((16, 8), np.float32 if acc == "f32" else np.float16)
    deep = 32 if t == "f8_e4m3" else 16
    for k in range(0, 512, deep):
        total = sums.multiply(kind, a[:, k : k + deep], b[k : k + deep], total, t, t, acc)
    bound = testing.error_bound(a, b, acc=acc, out=acc, operands=t)
    assert testing.share_of_bound(total, a.astype(np.float64) @ b.astype(np.float64), bound) <= 1


@pytest.mark.parametrize("acc", ["f32", "f16"])
def test_sums_of_quad_pairs_are_within_the_bound(acc: str) -> None:
    """m8n8k4 of f16: every addition is one of f32, rounded to nearest; onto f16 a step rounds once."""
    a, b = testing.random_array((16, 512), "f16", 1), testing.random_array((512, 8), "f16", 2)
    total = np.zeros((16, 8), np.float32 if acc == "f32" else np.float16)
    for k in range(0, 512, 4):
        total = sums.quad_pairs(a[:, k : k + 4], b[k : k + 4], total, acc)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert (np.abs(total.astype(np.float64) - exact) <= testing.error_bound(a, b, acc, acc)).all()


def test_products_of_quad_pairs_are_a_chain_from_zero() -> None:
    """Onto f32 the four products are summed first, onto f16 two by two onto C."""
    a = np.array([[1.0, 2.0**-12, -1.0, 0.0]], np.float16)
    b = np.array([[1.0], [2.0**-14], [1.0], [0.0]], np.float16)
    zero = np.zeros((1, 1), np.float32)
    assert sums.quad_pairs(a, b, zero, "f32")[0, 0] == 0.0  # 1 + 2^-26 is 1 in f32
    assert sums.quad_pairs(a[:, [0, 2, 1, 3]], b[[0, 2, 1, 3]], zero, "f32")[0, 0] == 2.0**-26
    large = np.full((1, 1), 2048.0, np.float16)
    ones = np.ones((4, 1), np.float16)
    # Rounded to f16 once, behind all four products.
    assert sums.quad_pairs(np.ones((1, 4), np.float16), ones, large, "f16")[0, 0] == 2052.0
