"""Checks the arguments of a call of `matmul` and converts them to the one form that the kernels take."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tilemma import dtypes
from tilemma.dtypes import DType
from tilemma.errors import LaunchError, described, nearest
from tilemma.launch import MAX_EXTENT
from tilemma.runtime.arrays import ArrayRef
from tilemma.runtime.binding import (
    MixedDevices,
    OverlappingArrays,
    ReadOnlyArray,
    SelfOverlappingArray,
    device_text,
)
from tilemma.runtime.overlap import overlap, overlaps_itself

OPERANDS = ("f16", "bf16")
RESULTS = ("f16", "bf16", "f32")
ACTIVATIONS = ("relu", "gelu", "silu")


class MatmulShape(LaunchError):
    code = "matmul-shape"
    found = "matmul: {what}"
    expected = "{wanted}"
    fix = "{remedy}"


class MatmulType(LaunchError):
    code = "matmul-dtype"
    found = "matmul: `{name}` holds {type}"
    expected = "{wanted}"
    fix = "{remedy}"


class MatmulScalar(LaunchError):
    code = "matmul-scalar"
    found = "matmul: `{name}` is {value!r}, a {type}"
    expected = "a real number"
    fix = "pass a Python number; arrays of scales are not supported"


class MatmulAddend(LaunchError):
    code = "matmul-addend"
    found = "matmul: beta is {beta} and there is no `c`"
    expected = "`c` wherever beta is not 0"
    fix = "pass `c=...`, or leave beta out"


class UnknownActivation(LaunchError):
    code = "matmul-activation"
    found = "matmul: {activation!r} is not an activation"
    expected = "None or one of {known}"
    fix = "{fix_text}"


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The operations on alpha * (a @ b) before it is stored, as far as code is specialised on them.

    ``scaled``: alpha is not 1.  ``addend``: beta * c is added, read from `c` or from the result itself.
    ``bias``: a number for each column, or for each row.
    """

    scaled: bool = False
    addend: Literal["", "c", "out"] = ""
    bias: Literal["", "columns", "rows"] = ""
    activation: str = ""

    @property
    def plain(self) -> bool:
        return self == Epilogue()

    def swapped(self) -> Epilogue:
        """The same for the transposed product."""
        other: dict[str, Literal["", "columns", "rows"]] = {"": "", "columns": "rows", "rows": "columns"}
        return Epilogue(self.scaled, self.addend, other[self.bias], self.activation)


@dataclass(frozen=True, slots=True)
class Problem:
    """A checked call in the kernels' form: out[b] = f(lhs[b] x rhs[b]) for b < batch.

    ``lhs`` is [B, M, K], or [B, K, M] where ``lhs_major`` is "col"; ``rhs`` is [B, N, K], or [B, K, N] where
    ``rhs_major`` is "col"; ``out`` and ``c`` are [B, M, N].  A column-major result is computed as the
    transposed product (``swapped``).  ``outer`` are further batches: byte offsets of (lhs, rhs, c, out) for
    each launch.
    """

    lhs: ArrayRef
    rhs: ArrayRef
    out: ArrayRef
    c: ArrayRef | None
    bias: ArrayRef | None
    lhs_major: Literal["row", "col"]
    rhs_major: Literal["row", "col"]
    alpha: float
    beta: float
    epilogue: Epilogue
    swapped: bool
    outer: tuple[tuple[int, int, int, int], ...]

    @property
    def batch(self) -> int:
        return self.out.shape[0]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(M, N, K) of the product that is computed."""
        k = self.lhs.shape[2 if self.lhs_major == "row" else 1]
        return self.out.shape[1], self.out.shape[2], k


def _shape_error(what: str, wanted: str, remedy: str) -> MatmulShape:
    return MatmulShape(what=what, wanted=wanted, remedy=remedy)


def _check_operands(a: ArrayRef, b: ArrayRef) -> None:
    for name, x in (("a", a), ("b", b)):
        if x.rank < 2:
            raise _shape_error(
                f"`{name}` has shape {list(x.shape)}",
                "matrices, [..., M, K] and [..., K, N]",
                f"reshape `{name}` to two dimensions",
            )
        if x.dtype.name not in OPERANDS:
            raise MatmulType(
                name=name, type=x.dtype, wanted=f"one of {', '.join(OPERANDS)}", remedy=f"convert `{name}`"
            )
        if max(x.shape) > MAX_EXTENT:
            raise _shape_error(
                f"`{name}` has shape {list(x.shape)}", f"extents of at most {MAX_EXTENT}", "split the product"
            )
    if a.dtype != b.dtype:
        raise MatmulType(name="b", type=b.dtype, wanted=f"{a.dtype}, as in `a`", remedy="convert one of them")
    if a.shape[-1] != b.shape[-2]:
        raise _shape_error(
            f"`a` is {list(a.shape)} and `b` {list(b.shape)}: K is {a.shape[-1]} here and {b.shape[-2]} there",
            "a [..., M, K] and b [..., K, N]",
            "transpose one of them: `b.T` costs nothing",
        )


def broadcast_batch(*shapes: Sequence[int]) -> tuple[int, ...] | None:
    """The common shape of batches, as NumPy broadcasts; None where there is none."""
    rank = max(map(len, shapes))
    found = []
    for extents in zip(*((1,) * (rank - len(s)) + tuple(s) for s in shapes), strict=True):
        wide = {e for e in extents if e != 1}
        if len(wide) > 1:
            return None
        found.append(wide.pop() if wide else 1)
    return tuple(found)


def result_shape(a: ArrayRef, b: ArrayRef) -> tuple[int, ...]:
    """[..., M, N].  Raises MatmulShape, MatmulType."""
    _check_operands(a, b)
    batch = broadcast_batch(a.shape[:-2], b.shape[:-2])
    if batch is None:
        raise _shape_error(
            f"the batches of `a`, {list(a.shape[:-2])}, and `b`, {list(b.shape[:-2])}, differ",
            "batch dimensions that are equal or 1",
            "index, expand or reshape one of them",
        )
    return (*batch, a.shape[-2], b.shape[-1])


def _broadcast(name: str, x: ArrayRef, shape: tuple[int, ...]) -> ArrayRef:
    """``x`` seen with ``shape``: dimensions that are missing or 1 get stride 0."""
    lead = len(shape) - x.rank
    extents, strides = (1,) * lead + x.shape, (0,) * lead + x.strides
    if lead < 0 or any(e not in (1, n) for e, n in zip(extents, shape, strict=True)):
        raise _shape_error(
            f"`{name}` has shape {list(x.shape)}",
            f"a shape that broadcasts to that of the result, {list(shape)}",
            f"reshape `{name}`",
        )
    fitted = tuple(0 if e == 1 and n != 1 else s for e, n, s in zip(extents, shape, strides, strict=True))
    return x._replace(shape=shape, strides=fitted)


def _bias(x: ArrayRef, m: int, n: int) -> tuple[ArrayRef, Literal["columns", "rows"]]:
    """The bias as a vector, and the dimension along which it varies."""
    plane = (1,) * (2 - x.rank) + x.shape if x.rank <= 2 else x.shape
    if plane == (m, 1) and m != 1:
        return x._replace(shape=(m,), strides=(x.strides[-2],)), "rows"
    if plane == (1, n):
        return x._replace(shape=(n,), strides=(x.strides[-1] if x.rank else 0,)), "columns"
    if plane == (1, 1):
        return x._replace(shape=(n,), strides=(0,)), "columns"
    raise _shape_error(
        f"`bias` has shape {list(x.shape)}",
        f"[{n}] or [1, {n}] (one for each column), or [{m}, 1] (one for each row)",
        "reshape it; a full matrix is `c` with beta=1",
    )


def _number(name: str, value: Any) -> float:
    if isinstance(value, (bool, str, bytes)) or not isinstance(value, numbers.Real):
        raise MatmulScalar(name=name, value=value, type=type(value).__name__)
    try:
        return float(value)
    except OverflowError:
        raise MatmulScalar(name=name, value=value, type=type(value).__name__) from None


def _activation(name: Any) -> str:
    if name is None:
        return ""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        near = nearest(name, ACTIVATIONS)
        raise UnknownActivation(
            activation=name if isinstance(name, str) else described(name),
            known=", ".join(ACTIVATIONS),
            fix_text=f"did you mean `{near}`?" if near else "use one of these, or apply it to the result",
        )
    return str(name)


def result_type(out: ArrayRef | None, out_dtype: Any, a: ArrayRef) -> DType:
    """Element type of the result: that of ``out``, else ``out_dtype``, else that of ``a``.  Raises MatmulType."""
    wanted = a.dtype if out is None else out.dtype
    if out_dtype is not None:
        try:
            named = dtypes.dtype(_type_name(out_dtype))
        except KeyError:
            raise MatmulType(
                name="out_dtype", type=out_dtype, wanted=f"one of {', '.join(RESULTS)}", remedy="use one of these"
            ) from None
        if out is not None and named != out.dtype:
            raise MatmulType(
                name="out",
                type=out.dtype,
                wanted=f"{named}, the `out_dtype` asked for",
                remedy="pass one of the two",
            )
        wanted = named
    if wanted.name not in RESULTS:
        name = "out" if out is not None else "out_dtype"
        raise MatmulType(name=name, type=wanted, wanted=f"one of {', '.join(RESULTS)}", remedy="use one of these")
    return wanted


def _type_name(x: Any) -> str:
    """The name of an element type given as tilemma's, NumPy's, torch's or a string."""
    if isinstance(x, DType):
        return x.name
    name = (
        getattr(x, "__name__", None)
        or getattr(x, "name", None)
        or (described(x) if isinstance(x, int) else str(x))
    )
    name = str(name).removeprefix("torch.")
    found = dtypes.from_library(name)
    return name if found is None else found.name


def _check_memory(out: ArrayRef, made: bool, others: dict[str, ArrayRef], in_place: bool) -> None:
    """Devices, and that the result has its memory for itself."""
    for name, x in others.items():
        if x.device != out.device:
            raise MixedDevices(
                kernel="matmul",
                name=name,
                device=device_text(x.device),
                other="out" if not made else "a",
                other_device=device_text(out.device),
            )
    if made or out.is_empty:
        return
    if not out.writable:
        remedy = "leave `out` out: JAX arrays never change" if out.library == "jax" else "pass a copy of it"
        raise ReadOnlyArray(kernel="matmul", name="out", library=out.library, remedy=remedy)
    if overlaps_itself(out):
        raise SelfOverlappingArray(kernel="matmul", name="out", shape=list(out.shape), strides=list(out.strides))
    for name, x in others.items():
        if not (in_place and name == "c") and overlap(out, x):
            raise OverlappingArrays(kernel="matmul", name="out", other=name)


def _same_place(x: ArrayRef, y: ArrayRef) -> bool:
    return (x.pointer, x.shape, x.dtype) == (y.pointer, y.shape, y.dtype) and all(
        s == t or e <= 1 for e, s, t in zip(x.shape, x.strides, y.strides, strict=True)
    )


def check(
    a: ArrayRef,
    b: ArrayRef,
    out: ArrayRef | None,
    out_dtype: Any,
    alpha: Any,
    beta: Any,
    c: ArrayRef | None,
    bias: ArrayRef | None,
    activation: Any,
) -> tuple[tuple[int, ...], DType]:
    """Shape and type of the result.  Every argument error is found here, or in `problem`.

    Raises MatmulShape, MatmulType, MatmulScalar, MatmulAddend, UnknownActivation.
    """
    shape = result_shape(a, b)
    dtype = result_type(out, out_dtype, a)
    if out is not None and out.shape != shape:
        raise _shape_error(f"`out` has shape {list(out.shape)}", f"{list(shape)}", "leave it out, or reshape it")
    _number("alpha", alpha)
    if _number("beta", beta) != 0 and c is None:
        raise MatmulAddend(beta=beta)
    _activation(activation)
    for name, x in (("c", c), ("bias", bias)):
        if x is not None and x.dtype.name not in RESULTS:
            raise MatmulType(name=name, type=x.dtype, wanted=f"one of {', '.join(RESULTS)}", remedy="convert it")
    if c is not None:
        _broadcast("c", c, shape)
    if bias is not None:
        _bias(bias, *shape[-2:])
    return shape, dtype


def problem(
    a: ArrayRef,
    b: ArrayRef,
    out: ArrayRef,
    alpha: Any,
    beta: Any,
    c: ArrayRef | None,
    bias: ArrayRef | None,
    activation: Any,
    *,
    made: bool,
) -> Problem:
    """The call in the kernels' form, after `check`; ``made``: the result was allocated for it.

    Raises MixedDevices, ReadOnlyArray, SelfOverlappingArray, OverlappingArrays.
    """
    alpha, beta = _number("alpha", alpha), _number("beta", beta)
    if beta == 0:
        c = None
    if c is not None:
        c = _broadcast("c", c, out.shape)
    in_place = c is not None and not made and _same_place(c, out)
    others = {
        "a": a,
        "b": b,
        **({"c": c} if c is not None else {}),
        **({"bias": bias} if bias is not None else {}),
    }
    _check_memory(out, made, others, in_place)
    m, n = out.shape[-2:]
    vector, along = (None, "") if bias is None else _bias(bias, m, n)
    addend: Literal["", "c", "out"] = "" if c is None else "out" if in_place else "c"
    epilogue = Epilogue(alpha != 1, addend, along, _activation(activation))  # type: ignore[arg-type]
    batch = out.shape[:-2]
    lhs = _broadcast("a", a, (*batch, *a.shape[-2:]))
    rhs = _broadcast("b", b, (*batch, *b.shape[-2:]))
    swapped = n > 1 and out.strides[-1] != 1 and out.strides[-2] == 1
    if swapped:
        lhs, rhs = _transposed(rhs), _transposed(lhs)
        out, c, epilogue = _transposed(out), None if c is None else _transposed(c), epilogue.swapped()
    left, lhs_major = _stored(lhs)
    right, rhs_major = _stored(_transposed(rhs))
    flat, outer = _flat_batch(left, right, c if addend == "c" else None, out)
    left, right, result = (x for x in (flat[0], flat[1], flat[3]) if x is not None)
    majors = lhs_major, rhs_major
    return Problem(left, right, result, flat[2], vector, *majors, alpha, beta, epilogue, swapped, outer)


def _transposed(x: ArrayRef) -> ArrayRef:
    shape, strides = x.shape, x.strides
    return x._replace(shape=(*shape[:-2], shape[-1], shape[-2]), strides=(*strides[:-2], strides[-1], strides[-2]))


def _stored(x: ArrayRef) -> tuple[ArrayRef, Literal["row", "col"]]:
    """An operand [.., rows, K] as its memory has it: transposed where the rows are neighbours and K is not."""
    (rows, depth), (along_rows, along_depth) = x.shape[-2:], x.strides[-2:]
    if along_depth != 1 and along_rows == 1 and rows > 1 and depth > 1:
        return _transposed(x), "col"
    return x, "row"


def _flat_batch(
    lhs: ArrayRef, rhs: ArrayRef, c: ArrayRef | None, out: ArrayRef
) -> tuple[tuple[ArrayRef | None, ...], tuple[tuple[int, int, int, int], ...]]:
    """The arrays with one batch dimension, and the byte offsets of further launches (empty batches: none).

    Neighbouring batch dimensions become one where every array steps through them evenly.
    """
    refs = (lhs, rhs, c, out)
    dims: list[tuple[int, tuple[int, ...]]] = []
    for d, extent in enumerate(out.shape[:-2]):
        if extent == 1:
            continue
        steps = tuple(0 if x is None else x.strides[d] for x in refs)
        if dims and all(s == t * extent for s, t in zip(dims[-1][1], steps, strict=True)):
            dims[-1] = (dims[-1][0] * extent, steps)
        else:
            dims.append((extent, steps))
    inner = max(range(len(dims)), key=lambda i: dims[i][0]) if dims else None
    extent, steps = dims.pop(inner) if inner is not None else (1, (0,) * 4)
    flat = tuple(
        None if x is None else x._replace(shape=(extent, *x.shape[-2:]), strides=(step, *x.strides[-2:]))
        for x, step in zip(refs, steps, strict=True)
    )
    offsets = [(0, 0, 0, 0)]
    for count, strides in dims:
        bytes_ = tuple(s * (0 if x is None else x.itemsize) for s, x in zip(strides, refs, strict=True))
        offsets = [
            (o[0] + i * bytes_[0], o[1] + i * bytes_[1], o[2] + i * bytes_[2], o[3] + i * bytes_[3])
            for o in offsets
            for i in range(count)
        ]
    return flat, tuple(offsets)


def flops(problem: Problem) -> float:
    """Multiplications and additions of the product."""
    m, n, k = problem.shape
    return 2.0 * m * n * k * problem.batch * max(len(problem.outer), 1)


__all__ = ["Epilogue", "Problem", "check", "flops", "problem"]
