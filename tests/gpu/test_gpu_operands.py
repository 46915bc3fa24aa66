"""Negated and exchanged operands, and accumulators that are read before their products are scaled, on a GPU: the
programs of the tests of the language, in both languages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import test_exchanged_operands as exchanged
import test_negated_operands as negated
import test_prepacked_metadata as prepacked
import test_scaled_sums as sums
from differential import croqtile_kernel, python_kernel

from tilemma.runtime import cuda_device, gpu_unavailable_reason, runs_on

pytestmark = pytest.mark.gpu
MISSING = gpu_unavailable_reason()
if MISSING:
    pytest.skip(MISSING, allow_module_level=True)


def check(texts: tuple[str, str], arch: str, given: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Both texts on the GPU, as code for ``arch``."""
    if not runs_on(arch, cuda_device(0).compute_capability):
        pytest.skip(f"this GPU does not run code for {arch}")
    for kernel in (croqtile_kernel(texts[0]), python_kernel(texts[1])):
        arguments = {name: v.copy() if isinstance(v, np.ndarray) else v for name, v in given.items()}
        kernel.on("cuda", arch=arch)(**arguments)
        for name, values in wanted.items():
            np.testing.assert_array_equal(arguments[name], values)


def every(cases: list[Any]) -> list[Any]:
    """The cases, those of long runs too."""
    return [getattr(case, "values", case) for case in cases]


@pytest.mark.parametrize(("t", "d", "arch", "level", "text"), every(negated.CASES))
@pytest.mark.parametrize("signs", negated.SIGNS)
def test_negated_operands(t: str, d: str, arch: str, level: str, text: str, signs: tuple[str, str]) -> None:
    check(negated.texts(t, d, level, *signs), arch, *negated.problem(t, d))


@pytest.mark.parametrize(("t", "k", "arch", "form"), every(sums.cases()))
def test_accumulators_are_read_before_they_are_scaled(t: str, k: int, arch: str, form: str) -> None:
    for n in (0, 1):
        check(sums.reading(t, k, form), arch, *sums.problem(t, k, form == "reduction", n))


@pytest.mark.parametrize("case", exchanged.CASES)
def test_exchanged_operands(case: Any) -> None:
    given = exchanged.arrays(case)
    check(exchanged.programs(case), case[-1], given, {"c": exchanged.wanted(case, given)})


@pytest.mark.parametrize(("t", "order", "tile", "level", "arch", "staged"), prepacked.CASES)
def test_prepacked_metadata(
    t: str, order: str, tile: tuple[int, int, int], level: str, arch: str, staged: bool
) -> None:
    given, wanted = prepacked.operands(t, order, tile)
    check(prepacked.texts(t, order, tile, level, staged), arch, given, {"c": wanted})
