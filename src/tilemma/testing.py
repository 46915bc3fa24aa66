"""Float64 references, the error bound of a correct kernel, random inputs, guarded arrays, differential runs.

Everything in this project that says "within the bound" means `error_bound`, and everything that is random
comes from `random_array`.  Both are meant for your own tests too::

    a, b = tm.testing.random_array((64, 96), "f16", 0), tm.testing.random_array((48, 96), "f16", 1)
    wanted = tm.testing.reference("mk,nk->mn", a, b)
    bound = tm.testing.error_bound(a, b.T, acc="f32", out="f16")
    assert tm.testing.share_of_bound(result, wanted, bound) <= 1
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from . import dtypes
from .checked import is_integer
from .dtypes import DType
from .errors import LaunchError, TilemmaError, WrongArgument, WrongArgumentType, described
from .runtime.arrays import describe, host_view

_F = TypeVar("_F", bound=Callable[..., Any])


class NotComparable(LaunchError, TypeError):
    code = "not-comparable"
    found = "`{function}` cannot work with these arguments: {what}"
    expected = "arrays and numbers as the function's docstring says, of shapes that fit together"
    fix = "correct the arguments"


def _explained(function: _F) -> _F:
    """Errors that Python or NumPy raise for unfit arguments become errors of the family."""

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except TilemmaError:
            raise
        except (
            TypeError,
            ValueError,
            LookupError,
            AttributeError,
            ArithmeticError,
            ImportError,
            MemoryError,
        ) as e:
            what = f"{type(e).__name__}: {e}"[:300]
            raise NotComparable(function=function.__name__, what=what) from e

    return cast(_F, call)


Array = np.ndarray[Any, Any]
F64 = npt.NDArray[np.float64]


@_explained
def half_ulp(magnitude: F64, dtype: str | DType) -> F64:
    """Half the distance between neighbours of type ``dtype`` at ``magnitude`` >= 0, subnormals included.

    Rounding x to nearest moves it by at most this much, if x does not overflow.
    """
    f = dtypes.dtype(dtype).floating
    _, exponent = np.frexp(magnitude)  # magnitude = m * 2**exponent, 0.5 <= m < 1; 0 has no exponent
    exponent = np.where(magnitude == 0, f.lowest, exponent - 1)
    return np.asarray(np.ldexp(0.5, np.maximum(exponent, f.lowest) - f.mantissa))


@dataclass(frozen=True, slots=True)
class Activation:
    """A function applied to each element: its float64 value, its Lipschitz constant, and the largest error of an
    evaluation in f32, relative to |x| (for functions that tend to x or to 0)."""

    value: Callable[[F64], F64]
    lipschitz: float
    evaluation: float


def _erf(x: F64) -> F64:
    return np.vectorize(math.erf, otypes=[np.float64])(x) if x.size else x


def _sigmoid(x: F64) -> F64:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


# max |gelu'| = 1.1289, max |gelu_tanh'| = 1.1290, max |silu'| = 1.0999.  exp2, reciprocal and a polynomial
# erf in f32 are good to a few units of 2^-23; tanh.approx.f32 has a relative error of 2^-11 (PTX ISA, tanh).
ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation(lambda x: np.maximum(x, 0), 1.0, 0.0),
    "gelu": Activation(lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))), 1.13, 2.0**-19),
    "gelu_tanh": Activation(
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))), 1.13, 2.0**-11
    ),
    "silu": Activation(lambda x: x * _sigmoid(x), 1.1, 2.0**-19),
}


@_explained
def to_float64(x: Any) -> F64:
    """``x`` (any array that kernels take, on any device) as a float64 NumPy array."""
    if isinstance(x, np.ndarray):
        return x.astype(np.float64)
    if _is_torch(x):
        return x.detach().double().cpu().numpy()  # type: ignore[no-any-return]
    if hasattr(x, "get") and hasattr(x, "__cuda_array_interface__"):  # cupy
        return np.asarray(x.get()).astype(np.float64)
    if np.isscalar(x) or isinstance(x, (list, tuple)):
        return np.asarray(x, np.float64)
    try:
        return host_view(describe(x)).astype(np.float64)
    except (AssertionError, TypeError):
        return np.asarray(x).astype(np.float64)


def _is_torch(x: Any) -> bool:
    return type(x).__module__.partition(".")[0] == "torch"


def _on_gpu(*arrays: Any) -> bool:
    return all(_is_torch(x) and x.device.type == "cuda" for x in arrays)


def _element_type(x: Any) -> str:
    return describe(x).dtype.name


@_explained
def reference(expect: str, *arrays: Any) -> F64:
    """The contraction ``expect`` (as for numpy.einsum: "mk,nk->mn") of ``arrays`` in float64.

    Torch tensors on a GPU are contracted there, in float64.  Element [m, n] is off by at most K * 2^-53
    times the sum of |products|: `error_bound` allows for it.
    """
    if _on_gpu(*arrays):
        import torch

        return to_float64(torch.einsum(expect, *(x.double() for x in arrays)))
    values = [to_float64(x) for x in arrays]
    return np.asarray(np.einsum(expect, *values, optimize=True), np.float64)


def _products(a: Any, b: Any) -> tuple[F64, F64]:
    """`a @ b` and `|a| @ |b|` in float64."""
    if _on_gpu(a, b):
        a, b = a.double(), b.double()
        return to_float64(a @ b), to_float64(a.abs() @ b.abs())
    x, y = to_float64(a), to_float64(b)
    return x @ y, np.abs(x) @ np.abs(y)


def grain_of(x: Any) -> float:
    """A power of two that divides every element of ``x``; 0 when none is known."""
    if _is_torch(x) and x.device.type == "cuda":
        whole = x.float()  # fp8 tensors have no arithmetic of their own
        return 1.0 if bool((whole == whole.round()).all()) else 0.0
    values = to_float64(x)
    mantissa, exponent = np.frexp(values[np.isfinite(values) & (values != 0)])
    if not mantissa.size:
        return 1.0
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    lowest = (whole & -whole).astype(np.float64)
    return float(np.ldexp(lowest, exponent - 53).min())


def _growth(unit: float, steps: float) -> float:
    """(1 + unit)^steps - 1: the bound on ``steps`` accumulated relative errors of at most ``unit``."""
    return math.expm1(steps * math.log1p(unit))


# Integers below this are added exactly by an accumulator of the type, however addends are aligned.
_EXACT = {"f64": 2.0**53, "f32": 2.0**24, "f16": 2.0**11, "f8": 2.0**13}


def accumulation_bound(total: F64, depth: int, acc: DType, operands: str, grain: float) -> F64:
    """Bound on |computed sum - exact sum| where ``total`` is the sum of |products|; see `error_bound`.

    ``operands`` names the type that is multiplied; ``grain`` divides every product (0: unknown).
    """
    if acc.is_integer:
        return np.where(total >= 2.0 ** (acc.bits - 1), np.inf, 0.0)
    f = acc.floating
    if acc.name == "f64":
        error = total * _growth(2.0**-53, 2 * depth + 4)
    elif acc.name == "f16":
        error = total * (_growth(2.0**-10, depth / 2 + 4) + _growth(2.0**-23, 1.5 * depth + 16))
        error = error + (depth / 2 + 4) * 2.0**-24
    else:
        error = total * _growth(2.0**-13 if operands.startswith("f8") else 2.0**-23, 1.5 * depth + 16)
        if operands == "tf32":
            error = error + total * (2 * 2.0**-10 + 2.0**-20)
        elif operands == "f32":
            error = error + total * 2.0**-23
        error = error + (depth + 1) * 2.0**-126
    error = error + total * depth * 2.0**-52
    exact = _EXACT["f8" if operands.startswith("f8") and acc.name == "f32" else acc.name]
    if operands not in ("f32", "tf32") and grain > 2.0**-100:
        error = np.where(total < exact * grain, 0.0, error)
    return np.where(total + error > f.largest, np.inf, error)


@_explained
def error_bound(
    a: Any,
    b: Any,
    acc: str | DType = "f32",
    out: str | DType = "f16",
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
    bias: Any = None,
    activation: str | None = None,
    *,
    operands: str | None = None,
) -> F64:
    """Elementwise bound on |result - r|, where r = activation(alpha * (a @ b) + beta * c + bias) in float64.

    ``a`` is [M, K] (or [..., M, K]), ``b`` is [K, N]; pass `rhs.T` for one stored [N, K].  ``acc`` is the
    accumulator's type, ``out`` that of the stored result.  ``c`` and ``bias`` broadcast against [M, N].
    ``operands`` is the type the hardware multiplies in: default that of ``a``; "tf32" for f32 arrays
    multiplied as tf32.  Returns float64 [M, N].  A correct kernel never exceeds it, in whatever order it
    adds; where it is infinite (overflow is possible) every result is accepted.

    **Accumulation.**  Write S = sum_k |a_mk| |b_kn|: every partial sum, in any order, is at most S (times
    1 + the relative error made so far).

    - Products of f16, bf16, fp8 are exact in f32: 11 + 11 or 8 + 8 bits are fewer than 24.
    - One tensor-core step adds n products and the accumulator: it aligns all addends to the largest
      exponent, drops the bits below the last of 24 (truncation, not rounding), and truncates the sum
      (Fasi, Higham, Mikaitis, Pranesh: Numerical behavior of NVIDIA tensor cores, 2021).  Each of the n
      smaller addends loses less than u*S with u = 2^-23 (an ulp, not half of one), the result u*S again:
      K/n steps lose (K + K/n) u S.  Known hardware has n >= 4, so 1.25 K; scalar f32 code rounds to
      nearest, K * 2^-24 for FMA chains and less for trees.  We take 1.5 K + 16 steps of u: the rest is for
      partial sums of split-K and of several accumulators (one more addition for each).
    - An H200 keeps 25 bits below the largest exponent of 16-bit operands, 13 of 8-bit ones in a wgmma (measured,
      see docs/machine.md), where n = 16 and 32: u = 2^-13 for fp8, and the bound above holds for the others.
      m8n8k4 of f16 is scalar code there: each addition of f32 is rounded to nearest.
    - f16 accumulators round once a step to 11 bits: K/4 truncations of 2^-10 in tensor cores, or K
      roundings of 2^-11 in scalar code, so K/2 + 4 steps of u = 2^-10, besides the inner additions; near
      zero each loses at most 2^-24.  If S can pass 65504, a partial sum can be infinite: the bound is too.
    - f32 operands: their products do not fit, one more u; tf32 operands lose 2^-10 each, since hardware
      may cut the bits it does not read.
    - Where every product is a multiple of some g and S < 2^24 g (f16: 2^11 g, fp8: 2^13 g), nothing is lost
      at all: inputs of small integers make an exact test.
    - Integers are exact below 2^31; beyond, they wrap and every result is accepted.
    - n errors of u compound to (1 + u)^n - 1.  Below 2^-126 everything may be flushed: (K + 1) 2^-126.

    **Epilogue**, in f32 (f64 for f64): each of the at most five operations rounds by 2^-24 of the largest
    intermediate |alpha| S' + |beta c| + |bias| (S' = |a @ b| + accumulation error); the accumulation error
    is scaled by |alpha|.  An activation of Lipschitz constant L stretches all of that by L and adds its own
    evaluation error (`ACTIVATIONS`).

    **Output.**  Rounding to nearest adds half an ulp of ``out`` at |r| + error, subnormals included, and
    nothing when ``out`` is the accumulator's type and there is no epilogue.  Past the largest value f16
    and bf16 become infinite (bound infinite), fp8 and integers saturate (the distance is added).
    """
    acc, out = dtypes.dtype(acc), dtypes.dtype(out)
    depth = int(a.shape[-1])
    if int(b.shape[-2]) != depth:
        raise ValueError(f"a is [..., M, K] = {tuple(a.shape)} and b [..., K, N] = {tuple(b.shape)}")
    product, total = _products(a, b)
    grain = grain_of(a) * grain_of(b)
    errors = accumulation_bound(total, depth, acc, operands or _element_type(a), grain)
    with np.errstate(invalid="ignore", over="ignore"):
        return _epilogue_bound(product, errors, acc, out, alpha, beta, c, bias, activation)


def _epilogue_bound(
    product: F64,
    error: F64,
    acc: DType,
    out: DType,
    alpha: float,
    beta: float,
    c: Any,
    bias: Any,
    activation: str | None,
) -> F64:
    """The bound after scaling, addends, activation and storing: the last part of `error_bound`."""
    value = alpha * product
    largest = abs(alpha) * np.abs(product)
    error = abs(alpha) * error
    terms = [f * to_float64(x) for f, x in ((beta, c), (1.0, bias)) if x is not None and f != 0]
    for term in terms:
        value, largest = value + term, largest + np.abs(term)
    plain = alpha == 1 and activation is None and not terms
    unit = 2.0**-53 if acc.name == "f64" else 2.0**-24
    if not plain:
        error = error + 5 * unit * (largest + error) + 5 * 2.0**-126
    if activation is not None:
        f = ACTIVATIONS[activation]
        error = f.lipschitz * error + f.evaluation * (np.abs(value) + error)
        value = f.value(value)
    bound = _stored(value, error, acc, out, plain)
    # 0 * infinity: an accumulator that may overflow; every result is accepted.
    return np.where(np.isinf(error) | (np.isnan(bound) & np.isfinite(value)), np.inf, bound)


def _stored(value: F64, error: F64, acc: DType, out: DType, plain: bool) -> F64:
    """``error`` after rounding to the type of the result."""
    reach = np.abs(value) + error
    if out.is_integer:
        low, high = (0.0, 2.0**out.bits - 1) if out.kind == "uint" else (-(2.0 ** (out.bits - 1)), 0.0)
        high = high or 2.0 ** (out.bits - 1) - 1
        beyond = np.maximum(np.maximum(value - high, low - value), 0)
        return np.asarray(error + (0.0 if acc.is_integer and plain else 0.5) + beyond)
    f = out.floating
    if out.name == acc.name and plain:
        rounding = np.zeros_like(reach)
    else:
        rounding = half_ulp(np.minimum(np.where(np.isfinite(reach), reach, 0.0), f.largest), out)
    if f.saturates:
        return np.asarray(error + rounding + np.maximum(np.abs(value) - f.largest, 0))
    return np.where(reach + rounding > f.largest, np.inf, error + rounding)


@_explained
def share_of_bound(result: Any, reference: Any, bound: Any) -> float:
    """The largest |result - reference| / bound; at most 1 for a correct kernel, infinite for a wrong one.

    0/0 counts as 0.  A NaN or infinity that the reference does not have, or has elsewhere, is infinite,
    except where the bound itself is: there every result is accepted.
    """
    got, wanted, allowed = to_float64(result), to_float64(reference), to_float64(bound)
    if got.shape != wanted.shape:
        raise ValueError(f"result has shape {got.shape}, reference {wanted.shape}")
    if got.size == 0:
        return 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(got - wanted)
        share = np.where(error == 0, 0.0, error / allowed)
    same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    share = np.where(same, 0.0, np.where(np.isfinite(got) & np.isfinite(wanted), share, np.inf))
    share = np.where(np.isposinf(np.broadcast_to(allowed, share.shape)), 0.0, share)
    return float(np.where(np.isnan(share), np.inf, share).max())


@_explained
def random_array(shape: Sequence[int], dtype: str | DType = "f16", seed: int = 0, kind: str = "randn") -> Array:
    """A NumPy array for tests, the same for the same arguments everywhere.

    ``kind``: "randn" (normal; integers: uniform over -100..100 or the type's range), "small_integers"
    (-2..2, unsigned 0..4: sums stay exact in every type), "onehot" (one 1 in each row, in a random place:
    the product shows which elements are multiplied).
    """
    element = dtypes.dtype(dtype)
    many = isinstance(shape, Sequence) and len(shape) > MAX_RANK
    if not isinstance(shape, Sequence) or isinstance(shape, str) or not (many or all(map(is_integer, shape))):
        raise WrongArgumentType(
            function="random_array", name="shape", got=described(shape), wanted="a sequence of whole numbers"
        )
    if many or any(n < 0 for n in shape) or math.prod(shape) > MAX_ELEMENTS:
        wanted = f"up to {MAX_RANK} numbers of at least 0, and at most {MAX_ELEMENTS} elements"
        got = f"{len(shape)} numbers" if many else f"{tuple(shape)!s:.60}"
        raise WrongArgument(function="random_array", name="shape", got=got, wanted=wanted)
    _check_size("random_array", "seed", seed, 1 << 62)
    if kind not in ("randn", "small_integers", "onehot"):
        wanted = "randn, small_integers or onehot"
        raise WrongArgument(function="random_array", name="kind", got=described(kind), wanted=wanted)
    rng = np.random.default_rng([seed, *shape])
    target = element.numpy
    if element.bits == 1 or element.kind == "bool":
        return rng.integers(0, 2, shape).astype(target)
    if kind == "onehot":
        made = np.zeros(shape, np.float64)
        if made.size:
            rows = made.reshape(-1, shape[-1]) if len(shape) else made.reshape(1, 1)
            rows[np.arange(len(rows)), rng.integers(0, rows.shape[1], len(rows))] = 1
        return made.astype(target)
    if kind == "small_integers":
        low, high = (0, 4) if element.kind == "uint" else (-2, 2)
        return rng.integers(low, high, shape, endpoint=True).astype(target)
    if element.is_integer:
        high = min(100, 2 ** (element.bits - (element.kind == "int")) - 1)
        low = 0 if element.kind == "uint" else -min(100, 2 ** (element.bits - 1))
        return rng.integers(low, high, shape, endpoint=True).astype(target)
    return rng.standard_normal(shape).astype(target)


# Dimensions and elements of an array for tests.
MAX_RANK = 32
MAX_ELEMENTS = 1 << 34


def _check_size(function: str, name: str, value: object, most: int, multiple: int = 1) -> None:
    if not is_integer(value):
        raise WrongArgumentType(function=function, name=name, got=described(value), wanted="a whole number")
    assert isinstance(value, (int, np.integer))
    if not 0 <= value <= most or value % multiple:
        wanted = f"a multiple of {multiple} from 0 to {most}" if multiple > 1 else f"a number from 0 to {most}"
        raise WrongArgument(function=function, name=name, got=described(value), wanted=wanted)


def _check_array(function: str, name: str, value: object) -> None:
    """Refuse objects that are not plain arrays of numbers: np.matrix keeps two dimensions under every
    operation."""
    if not isinstance(value, np.ndarray) or isinstance(value, np.matrix) or value.dtype.hasobject:
        got = f"{described(value)} of {value.dtype}" if isinstance(value, np.ndarray) else described(value)
        wanted = "a NumPy array of numbers"
        raise WrongArgumentType(function=function, name=name, got=got, wanted=wanted)


@dataclass(frozen=True, slots=True)
class Guarded:
    """``array`` lies in a larger allocation, ``memory``, whose other bytes are poison (`guarded`)."""

    array: Any
    memory: Any
    _inside: Array = field(repr=False)
    poison: int = 0xFF

    def check(self) -> None:
        """Raise AssertionError if a byte around the array, or between its rows, has changed."""
        memory = self.memory.cpu().numpy() if _is_torch(self.memory) else self.memory
        touched = np.flatnonzero((memory != self.poison) & ~self._inside)
        if touched.size:
            places = np.flatnonzero(self._inside)
            first = int(touched[0]) - (int(places[0]) if places.size else 0)
            raise AssertionError(
                f"{touched.size} bytes outside the array were written, the first {first} bytes from its start"
            )


@_explained
def guarded(
    array: Array, *, margin: int = 4096, gap: int = 16, misalignment: int = 0, device: str | None = None
) -> Guarded:
    """A copy of ``array`` (NumPy, any strides) whose surroundings are poisoned and can be checked.

    ``margin`` bytes before and after, and ``gap`` bytes after each row (the last dimension; a multiple of
    the element size), hold 0xFF: NaN in every floating type, so a read outside shows in the result too.
    The first element's address is ``misalignment`` bytes past a multiple of 128.  With ``device`` ("cuda",
    "cuda:1", "cpu") it is a torch tensor there.
    """
    _check_array("guarded", "array", array)
    itemsize = array.dtype.itemsize
    _check_size("guarded", "margin", margin, 1 << 30, 128)
    _check_size("guarded", "gap", gap, 1 << 30, itemsize)
    _check_size("guarded", "misalignment", misalignment, 1 << 30)
    strides, step = [], itemsize
    for axis, extent in reversed(list(enumerate(array.shape))):
        strides.append(step)
        step = step * extent + (gap if axis == array.ndim - 1 else 0)
    strides.reverse()
    size = 2 * margin + misalignment + (step if array.size else 0)
    room = np.full(size + 128, 0xFF, np.uint8)
    room = room[-room.ctypes.data % 128 :][:size]
    inside = np.zeros(size, bool)
    begin = margin + misalignment

    def view(memory: Array, t: Any) -> Array:
        made: Array = np.ndarray(array.shape, t, buffer=memory, offset=begin, strides=strides)
        return made

    view(room, array.dtype)[...] = array
    view(inside, f"V{itemsize}")[...] = np.frombuffer(b"\1" * itemsize, f"V{itemsize}")[0]
    if device is None:
        return Guarded(view(room, array.dtype), room, inside)
    return _guarded_torch(array, room, inside, [s // itemsize for s in strides], begin, device)


def _guarded_torch(
    array: Array, room: Array, inside: Array, strides: list[int], begin: int, device: str
) -> Guarded:
    import torch

    memory = torch.from_numpy(room.copy()).to(device)
    shift = -memory.data_ptr() % 128
    if shift:
        whole = torch.full((room.size + 128,), 0xFF, dtype=torch.uint8, device=device)
        memory = whole[-whole.data_ptr() % 128 :][: room.size]
        memory.copy_(torch.from_numpy(room))
    name = {"float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e5m2"}.get(array.dtype.name, array.dtype.name)
    usable = memory[begin:]
    usable = usable[: usable.numel() // array.dtype.itemsize * array.dtype.itemsize]
    tensor = usable.view(getattr(torch, name)).as_strided(array.shape, strides)
    return Guarded(tensor, memory, inside)


def differential(
    candidates: Mapping[str, Callable[..., Any]],
    inputs: Sequence[Any],
    wanted: Any,
    bound: Any,
    *,
    identical: Sequence[Sequence[str]] = (),
) -> dict[str, float]:
    """Run several implementations on copies of the same inputs; how much of the bound each one uses.

    Each of ``candidates`` is called with the inputs and returns its result.  Raises AssertionError that
    names every candidate beyond the bound, and every two in a group of ``identical`` whose bits differ.
    """
    if not isinstance(candidates, Mapping) or not all(callable(run) for run in candidates.values()):
        wanted = "a mapping from names to functions"
        raise WrongArgumentType(
            function="differential", name="candidates", got=described(candidates), wanted=wanted
        )
    for name, given in (("inputs", inputs), ("identical", identical)):
        if not isinstance(given, (tuple, list)):
            raise WrongArgumentType(function="differential", name=name, got=described(given), wanted="a list")
    for group in identical:
        if not isinstance(group, Sequence) or not group or not all(isinstance(n, str) for n in group):
            raise WrongArgumentType(
                function="differential",
                name="identical",
                got=described(group),
                wanted="groups of candidates' names",
            )
        if missing := [n for n in group if n not in candidates]:
            wanted = "names of candidates"
            raise WrongArgument(
                function="differential", name="identical", got=described(missing[0]), wanted=wanted
            )
    results, shares = {}, {}
    for name, run in candidates.items():
        results[name] = run(*(x.copy() if isinstance(x, np.ndarray) else x for x in inputs))
        shares[name] = share_of_bound(results[name], wanted, bound)
    wrong = [f"{name} uses {share:.3g} of its bound" for name, share in shares.items() if not share <= 1]
    for group in identical:
        first, *others = group
        bits = to_float64(results[first]).tobytes()
        wrong += [f"{first} and {o} differ" for o in others if to_float64(results[o]).tobytes() != bits]
    if wrong:
        raise AssertionError("; ".join(wrong))
    return shares
