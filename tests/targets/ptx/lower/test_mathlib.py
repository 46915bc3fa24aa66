"""The math library on the PTX machine against float64: the errors that `lower.mathlib` documents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tilemma as tm

RNG = np.random.default_rng(3)
SPECIAL = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 1.5, 2.5, 89, -90, 1e-40], np.float32)
ANY = np.concatenate(
    [RNG.standard_normal(64) * 3, RNG.standard_normal(64) * 40, RNG.standard_normal(32) * 1e-3, SPECIAL]
)
ANY = ANY.astype(np.float32)
UNIT = np.concatenate([np.linspace(-1, 1, 65), [np.nan, -0.0, 1e-30]]).astype(np.float32)
FAR = np.concatenate([ANY, RNG.standard_normal(32) * 1e5, RNG.standard_normal(32) * 1e9]).astype(np.float32)
FACTS = ANY[~np.isnan(ANY)]

# Function -> (arguments, exact function, largest relative error, largest absolute error).
Case = tuple[tuple[np.ndarray, ...], Callable[..., np.ndarray], float, float]


def _erf(x: np.ndarray) -> np.ndarray:
    import math

    return np.vectorize(math.erf, otypes=[np.float64])(x)


_GRID = np.array([0, -0.0, 1, -1, 3, -2, np.inf, -np.inf, np.nan, 0.5, -2.5], np.float32)
_X, _Y = np.repeat(_GRID, _GRID.size), np.tile(_GRID, _GRID.size)
_PX = np.concatenate([_X, np.abs(RNG.standard_normal(64)) * 5]).astype(np.float32)
_PY = np.concatenate([_Y, RNG.standard_normal(64) * 5]).astype(np.float32)

CASES: dict[str, Case] = {
    "fabs": ((ANY,), np.abs, 0, 0),
    "ceil": ((ANY,), np.ceil, 0, 0),
    "floor": ((ANY,), np.floor, 0, 0),
    "round": ((ANY,), lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), 0, 0),
    "sign": ((ANY,), np.sign, 0, 0),
    "isfinite": ((ANY,), lambda x: np.isfinite(x).astype(np.float64), 0, 0),
    "sqrt": ((ANY,), np.sqrt, 2**-24, 0),
    "frcp_rn": ((ANY,), lambda x: 1 / x, 2**-24, 0),
    "rsqrt": ((ANY,), lambda x: 1 / np.sqrt(x), 2**-21, 0),
    "exp": ((ANY,), np.exp, 2**-21, 1e-44),
    "exp2f": ((ANY,), np.exp2, 2**-21, 1e-44),
    "exp2_ftz": ((ANY,), lambda x: np.where(x < -126, 0, np.exp2(x)), 2**-21, 0),
    "expm1": ((ANY,), np.expm1, 2**-20, 0),
    "log": ((ANY,), np.log, 2**-20, 0),
    "log1p": ((ANY,), np.log1p, 2**-20, 0),
    "tanh": ((ANY,), np.tanh, 2**-20, 0),
    "sigmoid": ((ANY,), lambda x: 1 / (1 + np.exp(-x)), 2**-21, 2**-126),
    "sinh": ((ANY,), np.sinh, 2**-20, 0),
    "cosh": ((ANY,), np.cosh, 2**-20, 0),
    "softplus": ((ANY,), lambda x: np.logaddexp(0, x), 2**-20, 1e-44),
    "erf": ((ANY,), lambda x: _erf(x), 2**-20, 0),
    "silu": ((FACTS[-np.inf < FACTS],), lambda x: x / (1 + np.exp(-x)), 2**-20, 2**-120),
    "gelu": ((FACTS[-np.inf < FACTS],), lambda x: 0.5 * x * (1 + _erf(x / np.sqrt(2))), 2**-21, 2**-21),
    "sin": ((FAR,), np.sin, 2**-21, 2**-24),
    "cos": ((FAR,), np.cos, 2**-21, 2**-24),
    "tan": ((FAR,), np.tan, 2**-20, 2**-24),
    "atan": ((ANY,), np.arctan, 2**-20, 0),
    "asin": ((UNIT,), np.arcsin, 2**-20, 0),
    "acos": ((UNIT,), np.arccos, 0, 2**-20),
    "atan2": ((_X, _Y), np.arctan2, 2**-20, 0),
    "pow": ((_PX, _PY), np.power, 2**-23, 1e-44),
    "min": ((_X, _Y), np.fmin, 0, 0),
    "max": ((_X, _Y), np.fmax, 0, 0),
}


def run(tmp_path: Path, name: str, args: tuple[np.ndarray, ...], t: str) -> np.ndarray:
    names = "xyz"[: len(args)]
    params = ", ".join(f"global {t} [M] {n}" for n in names)
    values = ", ".join(f"{n}.at(b # t)" for n in names)
    file = tmp_path / "kernel.co"
    file.write_text(f"""
__co__ void f({params}, global {t} [M] out) {{
  parallel b by cdiv(M, 32) : block, t by 32 : thread {{
    if (b # t < M) {{ out.at(b # t) = __{name}({values}); }}
  }}
}}""")
    out = np.zeros(args[0].size, tm.dtypes.dtype(t).numpy)
    tm.load(str(file)).only().on("machine", arch="sm_80")(*args, out)
    return out


@pytest.mark.parametrize("name", CASES)
def test_error_is_within_what_is_documented(tmp_path: Path, name: str) -> None:
    args, exact, relative, absolute = CASES[name]
    got = run(tmp_path, name, args, "f32").astype(np.float64)
    with np.errstate(all="ignore"):
        wanted = exact(*(a.astype(np.float64) for a in args))
        stored = wanted.astype(np.float32).astype(np.float64)
        close = np.abs(got - wanted) <= relative * np.abs(wanted) + absolute
    agree = (got == stored) | (np.isnan(got) & np.isnan(stored)) | close
    assert agree.all(), [(tuple(a[i] for a in args), got[i], wanted[i]) for i in np.flatnonzero(~agree)[:5]]


DOUBLE = ["exp", "log", "sqrt", "rsqrt", "floor", "fabs", "round", "sign", "pow"]


@pytest.mark.parametrize("name", DOUBLE)
def test_doubles(tmp_path: Path, name: str) -> None:
    args, exact, _, _ = CASES[name]
    wide = tuple(a.astype(np.float64) * (1.0 if name == "pow" else 1.1) for a in args)
    got = run(tmp_path, name, wide, "f64")
    with np.errstate(all="ignore"):
        wanted = exact(*wide)
        close = np.abs(got - wanted) <= 2.0**-45 * np.abs(wanted)
    agree = (got == wanted) | (np.isnan(got) & np.isnan(wanted)) | close
    assert agree.all(), [(tuple(a[i] for a in wide), got[i], wanted[i]) for i in np.flatnonzero(~agree)[:5]]


def test_what_has_no_code_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(tm.CompileError) as caught:
        run(tmp_path, "sin", (np.zeros(4),), "f64")
    assert caught.value.code == "not-lowered" and "sin" in caught.value.message
    assert caught.value.span is not None


@pytest.mark.parametrize("name", ["exp", "tanh", "sqrt"])
def test_halves_are_rounded_once(tmp_path: Path, name: str) -> None:
    """Through f32, whose error is far below half a unit of f16: off by one only next to a tie."""
    _, exact, _, _ = CASES[name]
    x = np.abs(RNG.standard_normal(256)).astype(np.float16)
    got = run(tmp_path, name, (x,), "f16").astype(np.float64)
    wanted = exact(x.astype(np.float64))
    assert np.all(
        np.abs(got - wanted) <= np.spacing(wanted.astype(np.float16)).astype(np.float64) * (0.5 + 2.0**-8)
    )
