"""Random products of every type: both languages, reference and machine give what NumPy gives."""

from __future__ import annotations

import pytest

from dev.fuzz.families import FAMILIES

PRODUCTS = FAMILIES["products"]


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(n, marks=pytest.mark.slow) for n in range(12, 300))])
def test_products_agree_with_numpy(seed: int) -> None:
    failure = PRODUCTS.examine(PRODUCTS.make(seed), False).failure
    assert failure is None, str(failure)


def test_the_sample_reaches_every_feature() -> None:
    """So that a change of the generator does not silently stop testing one."""
    found = {x for seed in range(900) for x in PRODUCTS.make(seed).features()}
    types = ("f16", "bf16", "tf32", "f64", "f32", "s32", "s8", "u8", "s4", "u4", "b1", "f8_e4m3", "f8_e5m2")
    wanted = {
        *(f"A of {t}" for t in types), *(f"level {x}" for x in ("group", "group-2", "group-4")), *PRODUCTS.archs,
        *(f"operands by {x}" for x in ("copy", "shared", "view", "global", "tma")), "sparse u8", "sparse u32",
        *(f"mma.{x}" for x in ("row.row", "row.col", "col.row", "col.col")), "negated a", "negated b", "negated ab",
        "scale fused", "scale later", "scale rows turned", "store transposed", "store masked", "stored as s8",
        "sum scaled before the store", "C loaded from f32", "C loaded from s32", "load converts s8 to f16",
        "load converts f32 to tf32", "load converts f8_e4m3 to bf16", "sum of f16", "stored as f8_e4m3",
    }  # fmt: skip
    assert wanted <= found, wanted - found
