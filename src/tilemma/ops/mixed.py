"""`mixed_matmul`: activations of 16 bits times weights of 8 or 4 bits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tilemma import dtypes
from tilemma.dtypes import f32, s64
from tilemma.errors import WrongArgumentType, described
from tilemma.kernels import Kernel
from tilemma.ops import forms, mixed_plan
from tilemma.ops.arguments import Call, Rules, ending
from tilemma.ops.forms import Operand, Prepared
from tilemma.ops.gradients import differentiable
from tilemma.ops.mixed_kernels import mixed_products, mixed_sums, mixed_tiles, widened_weights
from tilemma.ops.mixed_plan import MixedShape, MixedTile
from tilemma.ops.mixed_streams import mixed_streams
from tilemma.ops.operand_layouts import aligned, transposed
from tilemma.ops.pipelined import add_parts
from tilemma.ops.plan import Hardware, hardware
from tilemma.ops.problem import Problem
from tilemma.ops.split_k import LOOKS
from tilemma.ops.steps import Source, Step, absent, batches, epilogue_constants, part, unread
from tilemma.ops.workspace import rooms
from tilemma.quantized import TYPES, Quantized, check_fields
from tilemma.runtime.arrays import ArrayRef, describe, empty_like_first

# More rows of activations are multiplied by weights of 16 bits.
FEW_ROWS = 256
RULES = Rules("mixed_matmul", (("f16",), ("bf16",)), ("f16", "bf16", "f32"), ())


def mixed_matmul(
    a: Any,
    b: Quantized,
    *,
    out: Any = None,
    out_dtype: Any = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Any = None,
    bias: Any = None,
    activation: str | None = None,
) -> Any:
    """activation(alpha * (a @ w) + beta * c + bias), with w = (values - zeros) * scales of ``b``.

    ``a`` is [..., M, K] of f16 or bf16, ``b`` what `tilemma.quantize` makes of weights [K, N].  Products are added
    in f32, and the sum of each group is multiplied by its scale in f32.  With ``zeros``, and where groups are not
    multiples of 32, each weight is computed in f32 and rounded to the type of ``a``; on sm_90a also where ``a`` is
    a matrix of more than 256 rows.  The other arguments, the result and the errors are those of `matmul`.
    """
    if not isinstance(b, Quantized):
        wanted = "what `tilemma.quantize` makes"
        raise WrongArgumentType(function="mixed_matmul", name="b", got=described(b), wanted=wanted)
    # A call that was checked before is found by its arrays and options, whose hashes do not tell 1 from True.
    if type(b.shape) is not tuple or any(type(n) is not int for n in (b.group, *b.shape)):
        check_fields("mixed_matmul", b)
    named = {"a": a, "values": b.values, "scales": b.scales, "zeros": b.zeros, "c": c, "bias": bias, "out": out}
    recorded = differentiable("mixed_matmul", named)
    if recorded is not None:
        check_fields("mixed_matmul", b)
        end = {"out_dtype": out_dtype, "alpha": alpha, "beta": beta, "activation": activation}
        return recorded(**named, type=b.type, group=b.group, **end)
    arrays = (a, b.values, c, bias, out, b.scales, b.zeros, None)
    options = (b.type, b.group, b.shape, out_dtype, alpha, beta, activation)

    def checked() -> Prepared:
        check_fields("mixed_matmul", b)
        return prepare(arrays, options)

    return forms.compute("mixed_matmul", arrays, options, checked)


def prepare(arrays: tuple[Any, ...], options: tuple[Any, ...]) -> Prepared:
    """A call of `mixed_matmul`, checked."""
    a, values, c, bias, out, scales, zeros, _ = arrays
    kind, group, extents, out_dtype, alpha, beta, activation = options
    given = [None if x is None else describe(x) for x in (c, bias, out)]
    weights, steps = describe(values), describe(scales)
    call = Call(
        describe(a), weights, given[2], out_dtype, alpha, beta, given[0], given[1], activation, rules=RULES
    )
    away = None if zeros is None else describe(zeros)
    shape = _result_shape(call, kind, group, extents, steps, away)
    out, result, made = forms.allocated(call, shape, out)
    call, result = forms.one_product(call, result, transposed(call.b))
    shape = result.shape
    left = forms.widened(call.a, shape)
    operands = [
        Operand(left, "a"),
        *(Operand(forms.widened(x, shape), s) for x, s in ((weights, "b"), (steps, "scale_a"))),
    ]
    m, n = shape[-2:]
    bits, plain = 4 if kind == "s4" else 8, call.a.rank == 2 and not result.is_empty
    whole = MixedShape(math.prod(shape[:-2]), m, n, extents[0], bits, group, plain, away is not None)
    on, on_cpu = hardware(result.device), result.device[0] == "cpu"
    constants = {
        "T": call.a.dtype.name, "TV": weights.dtype.name, "TS": steps.dtype.name, "AB": batches(left, "B"),
        "GROUP": group,
    }  # fmt: skip
    named = {"a": call.a, "b": weights, "scales": steps, "zeros": away}
    shift = forms.widened(steps if away is None else away, shape)
    shifted = [*operands, Operand(shift, "scale_a" if away is None else "scale_b")]
    moved = {"TZ": shift.dtype.name, "ZEROS": away is not None}
    if _many(result, call.a, weights, group, kind):
        rows = mixed_plan.product_rows(whole, on) if c is None and _streams((*named.values(),), on) else 0
        if not rows or _prefers_widening(call, result, made, whole, rows):
            return _by_widening(call, out, result, made, (steps, away), kind, group)
        constants |= {**moved, "TV": kind, "TILE_M": rows, "STAGED": forms.staged(result)}
        return forms.prepared(call, out, result, made, mixed_products, shifted, named, constants)
    room: tuple[tuple[ArrayRef, Source], ...] = ()
    specs: dict[str, tuple[tuple[int, ...], str]] = {}
    if away is None and _summed(weights, kind, group):
        streams = _streams((weights, call.a, steps), on)
        tile = mixed_plan.tile(whole, on, on_cpu=on_cpu, streams=streams)
        specs = tile.room(m, n)
        kernel, own = _sums(tile, whole, on, streams)
        constants |= {"TV": kind, **own}
        room = () if tile.stages else _room(call.a, specs)
    else:
        tile = mixed_plan.single(whole, on, on_cpu=on_cpu)
        kernel, operands = mixed_tiles, shifted
        constants |= {**moved, **tile.constants, "PACKED": kind == "s4"}
    if tile.parts > 1 and not specs:
        return _in_parts(call, kernel, out, result, made, operands, named, constants, tile.parts, room)
    ready = forms.prepared(call, out, result, made, kernel, operands, named, constants, room)
    return replace(ready, work=specs)


def _sums(tile: MixedTile, shape: MixedShape, on: Hardware, streams: bool) -> tuple[Kernel, dict[str, Any]]:
    """The kernel that sums groups apart, and its constants.  ``streams``: TMA copies all operands."""
    if tile.stages:
        return mixed_streams, tile.turns()
    once = tile.blocks(shape) <= on.sms
    constants = {**tile.constants, **tile.own(shape.group), "STREAM": shape.m <= tile.rows and streams}
    return mixed_sums(persistent=not once), constants | (_joined(tile, once) if tile.joined else {})


def _room(a: ArrayRef, specs: Mapping[str, tuple[tuple[int, ...], str]]) -> tuple[tuple[ArrayRef, Source], ...]:
    """The arrays in which blocks leave the sums of parts of K, and count their arrivals."""
    if not specs:
        return (unread(a, (1, 1, 1), f32), ("a", 0)), (unread(a, (1, 1), s64), ("a", 0))
    return tuple((describe(x)._replace(writable=True), (f"work.{n}", 0)) for n, x in rooms(specs, a).items())


def _joined(tile: MixedTile, once: bool) -> dict[str, Any]:
    """The constants of `mixed_sums` for parts of K that are added in the kernel.  Blocks wait for each other where
    all run at the same time (``once``)."""
    names = {n: n for n in ("PARTS", "PART0", "PART1", "WORDS", "WORD1")}
    return {"SPLIT": tile.parts, "LOOKS": LOOKS if once else 0, **names}


def _streams(operands: Iterable[ArrayRef | None], on: Hardware) -> bool:
    """Whether TMA copies all operands."""
    given = [x for x in operands if x is not None]
    whole = all(x.shape[-1] * x.itemsize % 16 == 0 and aligned(x) for x in given)
    return whole and given[0].device[0] == "cuda" and on.pipelines


def _summed(values: ArrayRef, kind: str, group: int) -> bool:
    """Whether the sums of groups are scaled: groups are made of whole instructions, and packed weights lie one
    after another."""
    return group % 32 == 0 and (kind != "s4" or values.strides[-1] == 1)


def _many(result: ArrayRef, a: ArrayRef, weights: ArrayRef, group: int, kind: str) -> bool:
    """Whether rows are many: weights of 16 bits are computed, in registers or once in memory."""
    on = hardware(result.device)
    many = result.device[0] == "cuda" and on.pipelines and a.shape[-2] > FEW_ROWS
    return many and not result.is_empty and a.rank == 2 and a.shape[1] > 0 and _summed(weights, kind, group)


def _prefers_widening(call: Call, result: ArrayRef, made: bool, shape: MixedShape, rows: int) -> bool:
    """Whether it is faster to compute the weights once, in memory, and to multiply by `matmul`, than to compute
    them in each block whose tile has ``rows`` rows."""
    on = hardware(result.device)
    # Memory that is not accessed, apart from the caller's.
    weights = call.a._replace(pointer=1 << 56, shape=(shape.k, shape.n), strides=(1, shape.k))
    product = forms.product_seconds(replace(call, b=weights), result, made)
    return mixed_plan.widening(shape, on) + product < mixed_plan.product_seconds(rows, shape, on)


def _by_widening(
    call: Call, out: Any, result: ArrayRef, made: bool, how: tuple[ArrayRef, ArrayRef | None], kind: str,
    group: int,
) -> Prepared:  # fmt: skip
    """A kernel that computes the weights in a workspace, and a product."""
    (scales, zeros), dtype = how, call.a.dtype.name
    ending(call, result, made, {"a": call.a, "b": call.b, "scales": scales, "zeros": zeros})
    shape = (result.shape[1], call.a.shape[1])
    room = empty_like_first(call.a, shape, dtype)
    work = describe(room)._replace(writable=True)
    found = forms.as_product(replace(call, b=transposed(work)), out, result, result, made)
    renamed = [
        replace(s, sources=tuple(("work.widened", at) if name == "b" else (name, at) for name, at in s.sources))
        for s in found.steps
    ]
    shift, source = (scales, "scale_a") if zeros is None else (zeros, "scale_b")
    constants = {
        "T": dtype, "TV": kind, "TS": scales.dtype.name, "TZ": shift.dtype.name, "ZEROS": zeros is not None,
        "GROUP": group, "COLUMNS": next(n for n in (128, 64, 32) if group % n == 0),
    }  # fmt: skip
    taken = ((call.b, ("b", 0)), (scales, ("scale_a", 0)), (shift, (source, 0)), (work, ("work.widened", 0)))
    first = Step(widened_weights, tuple(x for x, _ in taken), constants, tuple(s for _, s in taken))
    return replace(found, steps=(first, *renamed), work={**found.work, "widened": (shape, dtype)})


def _divided(x: ArrayRef, axis: int, parts: int) -> ArrayRef:
    """A matrix as [parts, ..], with ``axis`` divided."""
    shape = [n // parts if i == axis else n for i, n in enumerate(x.shape)]
    step = shape[axis] * x.strides[axis]
    return x._replace(shape=(parts, *shape), strides=(step, *x.strides), owner=(x.owner,))


def _in_parts(
    call: Call, kernel: Kernel, out: Any, result: ArrayRef, made: bool, operands: list[Operand],
    named: Mapping[str, ArrayRef | None], constants: Mapping[str, Any], parts: int,
    unused: tuple[tuple[ArrayRef, Source], ...],
) -> Prepared:  # fmt: skip
    """Products of ``parts`` slices of K in f32, and the call that adds them in order and applies the epilogue.

    ``unused``: the parameters of ``kernel`` for parts that it adds itself.
    """
    shape = (parts, *result.shape)
    room = empty_like_first(call.a, shape, "f32")
    work = describe(room)._replace(writable=True)
    # K is the columns of the activations and of the values, and the rows of scales and zeros.
    pieces = [replace(x, array=_divided(x.array, a, parts)) for x, a in zip(operands, (1, 1, 0, 0), strict=False)]
    plain = replace(call, c=None, bias=None, alpha=1.0, beta=0.0, activation=None, out=None, out_dtype="f32")
    batch = dict.fromkeys(("AB", "VB", "SB", "ZB")[: len(pieces)], "B")
    values = {**constants, **batch}
    first = forms.prepared(plain, room, work, True, kernel, pieces, {}, values, unused).steps[0]
    renamed = tuple(("work.partial" if name == "out" else name, at) for name, at in first.sources)
    c, bias, alpha, beta, epilogue = ending(call, result, made, dict(named))
    added = None if c is None or epilogue.addend != "c" else _wide(c)
    problem = Problem(
        _wide(call.a), _wide(call.a), _wide(result), added, bias, "row", "row", alpha, beta, epilogue,
        swapped=False, outer=(),
    )  # fmt: skip
    addend = forms.nothing(problem, (1, 1, 1)) if added is None else (part(added, 0), ("c", 0))
    biases = forms.nothing(problem, (1, 1)) if bias is None else (part(bias, 0), ("bias", 0))
    scale = absent(problem, (1, 1, 1), dtypes.dtype("f32"))[0], ("a", 0)
    taken = [(part(work, 0), ("work.partial", 0)), scale, scale, addend, biases]
    taken.append((part(problem.out, 0), ("out", 0)))
    values = {**epilogue_constants(problem, addend[0], biases[0], problem.out), "SPLIT": parts, "ACC": "f32"}
    last = Step(add_parts, (*(x for x, _ in taken), alpha, beta), values, tuple(s for _, s in taken))
    return Prepared((replace(first, sources=renamed), last), out, made, result, {"partial": (shape, "f32")})


def _wide(x: ArrayRef) -> ArrayRef:
    return x._replace(shape=(1, *x.shape), strides=(0, *x.strides), owner=(x.owner,))


def _result_shape(
    call: Call, kind: str, group: int, extents: tuple[int, int], scales: ArrayRef, zeros: ArrayRef | None
) -> tuple[int, ...]:
    """Raises MatmulShape, MatmulType."""
    a, values = call.a, call.b
    if a.dtype.name not in ("f16", "bf16"):
        raise call.bad_type("a", a.dtype, "f16 or bf16", "convert `a`")
    stored = {"s8": "s8", "s4": "u8", "f8_e4m3": "f8_e4m3"}.get(kind) if kind in TYPES else None
    if values.dtype.name != stored:
        raise call.bad_type("b", values.dtype, f"{stored or ', '.join(TYPES)}", "use `tilemma.quantize`")
    depth, columns = extents
    wanted = [columns, depth // 2 if kind == "s4" else depth]
    lists = [("scales", scales)] + ([] if zeros is None else [("zeros", zeros)])
    for name, x in lists:
        if x.dtype.name not in ("f32", "f16", "bf16"):
            raise call.bad_type(name, x.dtype, "f32, f16 or bf16", "convert them")
    right = all(list(x.shape) == [depth // max(group, 1), columns] for _, x in lists)
    if list(values.shape) != wanted or not right or group < 1 or depth % group or (kind == "s4" and depth % 2):
        raise call.bad_shape(
            f"`b` of shape {[depth, columns]} in groups of {group} has values {list(values.shape)} and scales "
            f"{list(scales.shape)}",
            f"values {wanted} and scales {[depth // max(group, 1), columns]}",
            "use `tilemma.quantize`",
        )
    if a.rank < 2 or a.shape[-1] != depth:
        what = f"`a` is {list(a.shape)} and `b` {[depth, columns]}"
        raise call.bad_shape(what, f"a [..., M, {depth}]", "transpose or reshape `a`")
    return (*a.shape[:-1], columns)
