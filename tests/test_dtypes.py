"""The derived properties of element types agree with the libraries that have the type."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilemma import dtypes
from tilemma.atoms.atom import Operand
from tilemma.atoms.warp import fragment
from tilemma.dtypes import DType, promote

TYPES = list(dtypes.BY_NAME.values())
FLOATS = [t for t in TYPES if t.is_float]
SMALL = [t for t in FLOATS if t.bits <= 16]


def numbers(t: DType) -> Any:
    """Every finite number of a type of at most 16 bits."""
    with np.errstate(invalid="ignore"):
        values = np.arange(2**t.bits, dtype=f"u{t.bytes}").view(t.numpy).astype(np.float64)
    return values[np.isfinite(values)]


@pytest.mark.parametrize("t", [t for t in FLOATS if not t.stored], ids=str)
def test_formats_are_those_of_the_library(t: DType) -> None:
    info: Any = ml_dtypes.finfo(t.numpy) if t.bits <= 16 else np.finfo(t.numpy)
    f = t.floating
    assert f.mantissa == info.nmant and f.exponent == info.nexp and f.largest == float(info.max)
    assert 2.0**f.lowest == float(info.smallest_normal)
    assert f.infinite == bool(np.isinf(np.array(np.inf).astype(t.numpy)))


@pytest.mark.parametrize(("a", "b"), list(itertools.product(SMALL, SMALL)), ids=lambda t: t.name)
def test_the_type_of_a_result_holds_the_numbers_of_both(a: DType, b: DType) -> None:
    result = promote(a, b)
    assert promote(b, a) == result
    for t in (a, b):
        values = numbers(t)
        np.testing.assert_array_equal(values.astype(result.numpy).astype(np.float64), values)
    with np.errstate(over="ignore"):
        holds = [t for t in SMALL if all((numbers(x).astype(t.numpy) == numbers(x)).all() for x in (a, b))]
    assert result in holds or (result is dtypes.f32 and not {a, b} & set(holds))


@pytest.mark.parametrize("t", TYPES, ids=str)
def test_types_are_found_by_the_names_and_codes_of_libraries(t: DType) -> None:
    plain = dtypes.BY_NAME[t.stored] if t.stored else t
    assert dtypes.from_numpy(t.numpy) is plain and dtypes.from_library(t.library_name) is plain
    assert t.library_name == str(t.numpy)
    if t.dlpack is not None:
        assert dtypes.from_dlpack(t.dlpack, t.bits) is t


def test_names_and_codes_are_not_shared() -> None:
    named = [t for t in TYPES if not t.stored]
    assert len({t.library_name for t in named}) == len(named)
    coded = [(t.dlpack, t.bits) for t in TYPES if t.dlpack is not None]
    assert len(set(coded)) == len(coded)
    assert dtypes.from_dlpack(99, 8) is None and dtypes.from_library("complex64") is None


@pytest.mark.parametrize("t", [dtypes.s8, dtypes.e4m3, dtypes.f16, dtypes.tf32, dtypes.s4], ids=str)
def test_fragments_of_any_width_are_made_of_rows_of_16_bytes(t: DType) -> None:
    """ldmatrix moves bytes: lane l gets bytes 4 * (l % 4) to 4 * (l % 4) + 3 of row l // 4 of each matrix."""
    pack = 32 // t.bits
    cols = 8 * pack
    a = Operand("A", t, (16, cols), fragment(16, cols, pack), registers=4, register="b32")
    origins = a.matrices()
    assert origins == ((0, 0), (8, 0), (0, 4 * pack), (8, 4 * pack))
    for register, (row, col) in enumerate(origins):
        for lane, element in itertools.product(range(32), range(pack)):
            expected = row + lane // 4, col + pack * (lane % 4) + element
            assert a.coordinates(lane, pack * register + element) == expected
