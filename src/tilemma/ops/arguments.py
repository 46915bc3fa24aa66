"""Checks the arguments of the products and converts them to the one form that the kernels take."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tilemma import dtypes
from tilemma.dtypes import DType
from tilemma.errors import described, nearest
from tilemma.launch import MAX_EXTENT
from tilemma.ops import refusals
from tilemma.ops.groups import check_offsets
from tilemma.ops.operand_layouts import transposed
from tilemma.ops.problem import Epilogue, Offsets, Problem
from tilemma.ops.scales import scaling
from tilemma.ops.shared_operands import Operands, merged
from tilemma.runtime import binding
from tilemma.runtime.arrays import ArrayRef
from tilemma.runtime.overlap import overlap, overlaps_itself

INTEGERS, FLOAT8 = ("s8", "u8"), ("f8_e4m3", "f8_e5m2")
# The element types of addends and biases; f64 with products of f64.
ADDENDS = ("f16", "bf16", "f32", "s32")
ACTIVATIONS = ("relu", "gelu", "silu")


@dataclass(frozen=True, slots=True)
class Rules:
    """The types of one function: operands that may meet, results for each kind of them, the default result
    ("": that of the first operand); and its names for the operands."""

    function: str
    operands: tuple[tuple[str, ...], ...]
    results: tuple[str, ...]
    integer_results: tuple[str, ...]
    default: str = ""
    names: tuple[str, str] = ("a", "b")

    def results_of(self, a: DType) -> tuple[str, ...]:
        if a.name == "f64":
            return "f64", "f32"
        return self.integer_results if a.is_integer else self.results

    def default_of(self, a: DType) -> str:
        return self.default or ("s32" if a.is_integer else a.name)


INTEGER_RESULTS = ("s32", "s8", "u8", "f16", "bf16", "f32")
_PLAIN = (("f16",), ("bf16",), INTEGERS, ("f32",), ("f64",))
PLAIN = Rules("matmul", _PLAIN, ("f16", "bf16", "f32"), INTEGER_RESULTS)
SCALED = Rules("scaled_matmul", (FLOAT8, INTEGERS), ("bf16", "f16", "f32", "s8"), INTEGER_RESULTS, "bf16")
_ALL = (("f16",), ("bf16",), INTEGERS, FLOAT8)
GROUPED = Rules("grouped_matmul", _ALL, ("bf16", "f16", "f32", "s8"), INTEGER_RESULTS)


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of a call, arrays described; scales are arrays or numbers."""

    a: ArrayRef
    b: ArrayRef
    out: ArrayRef | None = None
    out_dtype: Any = None
    alpha: Any = 1.0
    beta: Any = 0.0
    c: ArrayRef | None = None
    bias: ArrayRef | None = None
    activation: Any = None
    scale_a: Any = None
    scale_b: Any = None
    offsets: ArrayRef | None = None
    fast: bool = True
    rules: Rules = PLAIN
    compute: Any = None

    @property
    def function(self) -> str:
        return self.rules.function

    def bad_shape(self, what: str, wanted: str, remedy: str) -> refusals.MatmulShape:
        return refusals.MatmulShape(function=self.function, what=what, wanted=wanted, remedy=remedy)

    def bad_type(self, name: str, type_: object, wanted: str, remedy: str) -> refusals.MatmulType:
        return refusals.MatmulType(function=self.function, name=name, type=type_, wanted=wanted, remedy=remedy)


def _check_operands(call: Call) -> None:
    (a, b), (left, right) = (call.a, call.b), call.rules.names
    for name, x, rank in ((left, a, 2), (right, b, 2 if call.offsets is None else 3)):
        if x.rank < rank:
            forms = "matrices, [..., M, K] and [..., K, N]" if call.offsets is None else "a [T, K] and b [E, K, N]"
            fix = f"reshape `{name}` to {'two' if rank == 2 else 'three'} dimensions"
            raise call.bad_shape(f"`{name}` has shape {list(x.shape)}", forms, fix)
        known = [t for group in call.rules.operands for t in group]
        if x.dtype.name not in known:
            to = _nearest_type(x.dtype, b.dtype if x is a else a.dtype, known)
            other = "scaled_matmul takes 8-bit floats" if x.dtype.name in FLOAT8 else f"convert `{name}` to {to}"
            raise call.bad_type(name, x.dtype, f"one of {', '.join(known)}", other)
        if max(x.shape) > MAX_EXTENT:
            limit = f"extents of at most {MAX_EXTENT}"
            raise call.bad_shape(f"`{name}` has shape {list(x.shape)}", limit, "split the product")
    partners = next(group for group in call.rules.operands if a.dtype.name in group)
    if b.dtype.name not in partners:
        also = "" if len(partners) == 1 else f", {' or '.join(p for p in partners if p != a.dtype.name)}"
        change = _common_type({left: a.dtype, right: b.dtype})
        raise call.bad_type(right, b.dtype, f"{a.dtype}{also}, as in `{left}`", f"convert {change}")
    if a.shape[-1] != b.shape[-2]:
        raise call.bad_shape(
            f"`{left}` is {list(a.shape)} and `{right}` {list(b.shape)}: K is {a.shape[-1]} here and"
            f" {b.shape[-2]} there",
            f"{left} [..., M, K] and {right} [..., K, N]",
            _advice_for_k(call),
        )


def _advice_for_k(call: Call) -> str:
    """Which transposition gives both operands the same K, if one does."""
    (a, b), (left, right) = (call.a, call.b), call.rules.names

    def transpose(name: str, x: ArrayRef) -> str:
        return f"`{name}.T`" if x.rank == 2 else f"`{name}.swapaxes(-1, -2)`"

    if a.shape[-1] == b.shape[-1]:
        return f"pass {transpose(right, b)}, which copies nothing"
    if call.offsets is None and a.shape[-2] == b.shape[-2]:
        return f"pass {transpose(left, a)}, which copies nothing"
    if call.offsets is None and a.shape[-2] == b.shape[-1]:
        return f"exchange `{left}` and `{right}`, or transpose both"
    return "pass operands with the same K: no transposes of these have it"


def _common_type(operands: Mapping[str, DType]) -> str:
    """Which of two operands to convert, and to which type: the one whose numbers the other's type holds, except
    f16 and bf16 to f32, which the tensor cores do not multiply with all its bits."""
    (left, a), (right, b) = operands.items()
    half = next((t.name for t in (a, b) if t.name in ("f16", "bf16")), "")
    if half and "f32" in (a.name, b.name):
        both = ", or both to bf16 where numbers exceed 65504" if half == "f16" else ""
        return f"`{left if a.name == 'f32' else right}` to {half}{both}"
    return f"`{left}` to {b}" if _holds(b, a) else f"`{right}` to {a}"


def _holds(one: DType, other: DType) -> bool:
    """Whether each number of ``other`` is one of ``one``, or ``other`` has only two."""
    if one.format is None or other.format is None:
        return other.kind == "bool" or (one.format is not None and other.bits <= one.format.mantissa)
    return one.format.holds(other.format)


def _nearest_type(given: DType, other: DType, known: Sequence[str]) -> str:
    """The type of ``known`` to convert an operand to: that of the ``other`` operand, the smallest that holds all
    its numbers, or the float with the most digits."""
    if other.name in known:
        return other.name
    types = sorted((dtypes.dtype(x) for x in known), key=lambda t: t.bits)
    floats = [(t.format.mantissa, t.name) for t in types if t.format is not None]
    return next((t.name for t in types if _holds(t, given)), max(floats)[1])


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


def result_shape(call: Call) -> tuple[int, ...]:
    """[..., M, N], or [T, N] of groups.  Raises MatmulShape, MatmulType."""
    _check_operands(call)
    a, b = call.a, call.b
    if call.offsets is not None:
        if a.rank != 2 or b.rank != 3:
            raise call.bad_shape(
                f"`a` is {list(a.shape)} and `b` {list(b.shape)}", "a [T, K] and b [E, K, N]", "reshape them"
            )
        return a.shape[0], b.shape[-1]
    batch = broadcast_batch(a.shape[:-2], b.shape[:-2])
    if batch is None:
        left, right = call.rules.names
        raise call.bad_shape(
            f"the batches of `{left}`, {list(a.shape[:-2])}, and `{right}`, {list(b.shape[:-2])}, differ",
            "batch dimensions that are equal or 1",
            "index, expand or reshape one of them",
        )
    return (*batch, a.shape[-2], b.shape[-1])


def broadcast(call: Call, name: str, x: ArrayRef, shape: tuple[int, ...]) -> ArrayRef:
    """``x`` seen with ``shape``: dimensions that are missing or 1 get stride 0."""
    lead = len(shape) - x.rank
    extents, strides = (1,) * lead + x.shape, (0,) * lead + x.strides
    if lead < 0 or any(e not in (1, n) for e, n in zip(extents, shape, strict=True)):
        wanted = f"a shape that broadcasts to that of the result, {list(shape)}"
        raise call.bad_shape(f"`{name}` has shape {list(x.shape)}", wanted, f"reshape `{name}`")
    fitted = tuple(0 if e == 1 and n != 1 else s for e, n, s in zip(extents, shape, strides, strict=True))
    return x._replace(shape=shape, strides=fitted)


def bias_of(call: Call, x: ArrayRef, m: int, n: int) -> tuple[ArrayRef, Literal["columns", "rows"]]:
    """The bias as [groups or 1, extent], and the dimension along which it varies."""
    experts = 0 if call.offsets is None else call.b.shape[0]
    if experts and x.rank == 2 and x.shape == (experts, n) and experts != 1:
        return x, "columns"
    plane = (1,) * (2 - x.rank) + x.shape if x.rank <= 2 else x.shape
    if plane == (m, 1) and m != 1:
        return x._replace(shape=(1, m), strides=(0, x.strides[-2])), "rows"
    if plane == (1, n):
        return x._replace(shape=(1, n), strides=(0, x.strides[-1] if x.rank else 0)), "columns"
    if plane == (1, 1):
        return x._replace(shape=(1, n), strides=(0, 0)), "columns"
    raise call.bad_shape(
        f"`bias` has shape {list(x.shape)}",
        f"[{n}] or [1, {n}] (one for each column), or [{m}, 1] (one for each row)"
        + (f", or [{experts}, {n}] (a row for each group)" if experts else ""),
        "reshape it; a full matrix is `c` with beta=1",
    )


def number(call: Call, name: str, value: Any) -> float:
    """``value`` as a float.  Raises MatmulScalar."""
    if not isinstance(value, (bool, str, bytes)) and isinstance(value, numbers.Real):
        try:
            return float(value)
        except OverflowError:
            pass
    raise refusals.MatmulScalar(function=call.function, name=name, value=value, type=type(value).__name__)


def activation_of(call: Call) -> str:
    """The name of the activation, "" for none.  Raises UnknownActivation."""
    name = call.activation
    if name is None:
        return ""
    if not isinstance(name, str) or name not in ACTIVATIONS:
        near = nearest(name, ACTIVATIONS)
        raise refusals.UnknownActivation(
            function=call.function,
            activation=name if isinstance(name, str) else described(name),
            known=", ".join(ACTIVATIONS),
            fix_text=f"did you mean `{near}`?" if near else "use one of these, or apply it to the result",
        )
    return str(name)


def result_type(call: Call) -> DType:
    """Element type of the result: that of ``out``, else ``out_dtype``, else the default.  Raises MatmulType."""
    known = call.rules.results_of(call.a.dtype)
    default = call.rules.default_of(call.a.dtype)
    wanted = dtypes.dtype(default if default in known else "bf16") if call.out is None else call.out.dtype
    if call.out_dtype is not None:
        try:
            named = dtypes.dtype(type_name(call.out_dtype))
        except KeyError:
            wants = f"one of {', '.join(known)}"
            raise call.bad_type("out_dtype", call.out_dtype, wants, "use one of these") from None
        if call.out is not None and named != call.out.dtype:
            asked = f"{named}, the `out_dtype` asked for"
            raise call.bad_type("out", call.out.dtype, asked, "pass one of the two")
        wanted = named
    if wanted.name not in known:
        name = "out" if call.out is not None else "out_dtype"
        raise call.bad_type(name, wanted, f"one of {', '.join(known)}", "use one of these")
    return wanted


def type_name(x: Any) -> str:
    """The name of an element type given as tilemma's, NumPy's, torch's or a string."""
    if isinstance(x, DType):
        return x.name
    if x is float:  # as NumPy and torch have it; the name alone is that of torch's f32
        return "f64"
    name = (
        getattr(x, "__name__", None)
        or getattr(x, "name", None)
        or (described(x) if isinstance(x, int) else str(x))
    )
    name = str(name).removeprefix("torch.")
    found = dtypes.from_library(name)
    return name if found is None else found.name


def _check_memory(call: Call, out: ArrayRef, made: bool, others: dict[str, ArrayRef], in_place: bool) -> None:
    """Devices, and that the result has its memory for itself."""
    for name, x in others.items():
        if x.device != out.device:
            raise binding.MixedDevices(
                kernel=call.function,
                name=name,
                device=binding.device_text(x.device),
                other="out" if not made else call.rules.names[0],
                other_device=binding.device_text(out.device),
            )
    if made or out.is_empty:
        return
    if not out.writable:
        remedy = "leave `out` out: JAX arrays never change" if out.library == "jax" else "pass a copy of it"
        raise binding.ReadOnlyArray(kernel=call.function, name="out", library=out.library, remedy=remedy)
    if overlaps_itself(out):
        raise binding.SelfOverlappingArray(
            kernel=call.function, name="out", shape=list(out.shape), strides=list(out.strides)
        )
    for name, x in others.items():
        if not (in_place and name == "c") and overlap(out, x):
            raise binding.OverlappingArrays(kernel=call.function, name="out", other=name)


def _same_place(x: ArrayRef, y: ArrayRef) -> bool:
    return (x.pointer, x.shape, x.dtype) == (y.pointer, y.shape, y.dtype) and all(
        s == t or e <= 1 for e, s, t in zip(x.shape, x.strides, y.strides, strict=True)
    )


def check(call: Call) -> tuple[tuple[int, ...], DType]:
    """Shape and type of the result.  Every argument error is found here, or in `problem`.

    Raises MatmulShape, MatmulType, MatmulScalar, MatmulScale, MatmulOffsets, MatmulAddend, UnknownActivation.
    """
    shape = result_shape(call)
    dtype = check_epilogue(call, shape)
    scaling(call, shape)
    check_offsets(call)
    _compute(call)
    return shape, dtype


def check_epilogue(call: Call, shape: tuple[int, ...]) -> DType:
    """The type of the result, of ``shape``, after a check of all that is applied to the product.

    Raises MatmulShape, MatmulType, MatmulScalar, MatmulAddend, UnknownActivation.
    """
    dtype = result_type(call)
    if call.out is not None and call.out.shape != shape:
        wanted = f"{list(shape)}"
        raise call.bad_shape(f"`out` has shape {list(call.out.shape)}", wanted, "leave it out, or reshape it")
    number(call, "alpha", call.alpha)
    if number(call, "beta", call.beta) != 0 and call.c is None:
        raise refusals.MatmulAddend(function=call.function, beta=call.beta)
    activation_of(call)
    addends = (*ADDENDS, "f64") if call.a.dtype.name == "f64" else ADDENDS
    for name, x in (("c", call.c), ("bias", call.bias)):
        if x is not None and x.dtype.name not in addends:
            to = _nearest_type(x.dtype, x.dtype, addends)
            raise call.bad_type(name, x.dtype, f"one of {', '.join(addends)}", f"convert it to {to}")
    if call.c is not None:
        broadcast(call, "c", call.c, shape)
    if call.bias is not None:
        bias_of(call, call.bias, *shape[-2:])
    return dtype


def _compute(call: Call) -> DType:
    """The type that the operands are multiplied as.  Raises MatmulCompute."""
    if call.compute is None:
        return call.a.dtype
    if not isinstance(call.compute, str) or call.compute != "tf32" or call.a.dtype.name != "f32":
        raise refusals.MatmulCompute(function=call.function, compute=described(call.compute), type=call.a.dtype)
    return dtypes.dtype("tf32")


def ending(
    call: Call, out: ArrayRef, made: bool, operands: dict[str, ArrayRef | None], factor: float = 1.0
) -> tuple[ArrayRef | None, ArrayRef | None, float, float, Epilogue]:
    """(c as broadcast to ``out``, the bias as [.., extent], alpha times ``factor``, beta, epilogue), after
    `check_epilogue`; also checks devices and memory of all arrays.

    Raises MixedDevices, ReadOnlyArray, SelfOverlappingArray, OverlappingArrays.
    """
    alpha, beta = number(call, "alpha", call.alpha), number(call, "beta", call.beta)
    c = None if call.c is None or beta == 0 else broadcast(call, "c", call.c, out.shape)
    in_place = c is not None and not made and _same_place(c, out)
    named = {**operands, "c": c, "bias": call.bias}
    _check_memory(call, out, made, {n: x for n, x in named.items() if x is not None}, in_place)
    bias, along = (None, "") if call.bias is None else bias_of(call, call.bias, *out.shape[-2:])
    addend: Literal["", "c", "out"] = "" if c is None else "out" if in_place else "c"
    alpha *= factor
    return c, bias, alpha, beta, Epilogue(alpha != 1, addend, along, activation_of(call))  # type: ignore[arg-type]


def problem(call: Call, out: ArrayRef, *, made: bool) -> Problem:
    """The call in the kernels' form, after `check`; ``made``: ``out`` was allocated for it.

    Raises MixedDevices, ReadOnlyArray, SelfOverlappingArray, OverlappingArrays.
    """
    call = replace(call, a=_settled(call.a), b=_settled(call.b), c=None if call.c is None else _settled(call.c))
    out = _settled(out)
    left_scale, right_scale, factor = scaling(call, out.shape)
    named = {"a": call.a, "b": call.b, "offsets": call.offsets}
    named |= {"scale_a": left_scale.array, "scale_b": right_scale.array}
    c, bias, alpha, beta, epilogue = ending(call, out, made, named, factor)
    addend = epilogue.addend
    promote = call.a.dtype.bits == 8 and call.a.dtype.is_float and not call.fast
    promote = promote or left_scale.stepwise or right_scale.stepwise
    batch = out.shape[:-2]
    grouped: Literal["", "rows", "columns"] = "" if call.offsets is None else "rows"
    if call.offsets is not None:
        lhs, rhs = call.a, call.b
    else:
        multiplied = _compute(call)
        lhs = broadcast(call, "a", call.a._replace(dtype=multiplied), (*batch, *call.a.shape[-2:]))
        right_type = multiplied if call.compute is not None else call.b.dtype
        rhs = broadcast(call, "b", call.b._replace(dtype=right_type), (*batch, *call.b.shape[-2:]))
        one = merged(Operands(lhs, rhs, out, c, left_scale, right_scale), epilogue.bias)
        lhs, rhs, out, c = one.lhs, one.rhs, one.out, one.c
        left_scale, right_scale = one.left, one.right
    swapped = out.shape[-1] > 1 and out.strides[-1] != 1 and out.strides[-2] == 1
    if swapped:
        lhs, rhs = transposed(rhs), transposed(lhs)
        out, c, epilogue = transposed(out), None if c is None else transposed(c), epilogue.swapped()
        left_scale, right_scale = right_scale, left_scale
        grouped = "columns" if grouped else ""
    left, lhs_major = stored(lhs)
    right, rhs_major = stored(transposed(rhs))
    addends = c if addend == "c" else None
    scales = left_scale.array, right_scale.array
    if call.offsets is not None:
        flat: tuple[ArrayRef | None, ...] = tuple(
            None if x is None else x if x.rank == 3 else _with_batch(x)
            for x in (left, right, addends, out, *scales)
        )
        outer: tuple[Offsets, ...] = ((0,) * 6,)
    else:
        flat, outer = flat_batch((left, right, addends, out, *scales))
    left, right, result = (x for x in (flat[0], flat[1], flat[3]) if x is not None)
    return Problem(
        left, right, result, flat[2], bias, lhs_major, rhs_major, alpha, beta, epilogue, swapped, outer,
        replace(left_scale, array=flat[4]), replace(right_scale, array=flat[5]), promote, call.offsets, grouped,
    )  # fmt: skip


def _settled(x: ArrayRef) -> ArrayRef:
    """``x`` with the stride that a row-major array has where a dimension before the last has one element.

    Libraries put any number there, and a second stride of 1 would hide which dimension is contiguous.
    """
    strides = list(x.strides)
    for i in reversed(range(x.rank - 1)):
        if x.shape[i] == 1:
            strides[i] = x.shape[i + 1] * strides[i + 1]
    return x._replace(strides=tuple(strides))


def _with_batch(x: ArrayRef) -> ArrayRef:
    return x._replace(shape=(1, *x.shape), strides=(0, *x.strides))


def stored(x: ArrayRef) -> tuple[ArrayRef, Literal["row", "col"]]:
    """An operand [.., rows, K] as its memory has it: transposed where the rows are neighbours and K is not."""
    (rows, depth), (along_rows, along_depth) = x.shape[-2:], x.strides[-2:]
    if along_depth != 1 and along_rows == 1 and rows > 1 and depth > 1:
        return transposed(x), "col"
    return x, "row"


def flat_batch(refs: tuple[ArrayRef | None, ...]) -> tuple[tuple[ArrayRef | None, ...], tuple[Offsets, ...]]:
    """(lhs, rhs, c, out, scales) with one batch dimension, and the byte offsets of further launches (empty
    batches: none).

    Neighbouring batch dimensions become one where every array steps through them evenly.
    """
    out = refs[3]
    assert out is not None
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
    extent, steps = dims.pop(inner) if inner is not None else (1, (0,) * len(refs))
    flat = tuple(
        None if x is None else x._replace(shape=(extent, *x.shape[-2:]), strides=(step, *x.strides[-2:]))
        for x, step in zip(refs, steps, strict=True)
    )
    offsets: list[tuple[int, ...]] = [(0,) * len(refs)]
    for count, strides in dims:
        sizes = [s * (0 if x is None else x.itemsize) for s, x in zip(strides, refs, strict=True)]
        offsets = [
            tuple(o + i * b for o, b in zip(at, sizes, strict=True)) for at in offsets for i in range(count)
        ]
    return flat, tuple(offsets)  # type: ignore[arg-type]
