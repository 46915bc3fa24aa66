"""Launches of a product: from a problem and a plan to kernel calls with their arrays and compile-time values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilemma import dtypes
from tilemma.arithmetic.integers import cdiv
from tilemma.dtypes import DType, f32, s32, s64
from tilemma.kernels import Kernel
from tilemma.lang.pipeline import Pipeline
from tilemma.ops import long_k, registers
from tilemma.ops.batch_plans import AHEAD
from tilemma.ops.edges import parts as parts_of
from tilemma.ops.operand_layouts import (
    brought,
    by_columns,
    far_scales,
    must_transpose,
    transposed,
    transposed_product,
)
from tilemma.ops.plan import Plan
from tilemma.ops.problem import UNSCALED, Epilogue, Offsets, Problem, Scaling
from tilemma.ops.resident_plans import lines_of
from tilemma.runtime.arrays import ArrayRef


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel call.

    ``sources``: for each array parameter, in order, the array of the problem that it is a part of, and how many
    bytes into it.
    """

    kernel: Kernel
    args: tuple[Any, ...]
    constants: dict[str, Any]
    sources: tuple[tuple[str, int], ...]


def _kernel(problem: Problem, plan: Plan) -> Kernel:
    from tilemma.ops import kernels, pipelined

    if plan.by_hand:
        return pipelined.matmul_by_hand
    if plan.kernel == "pipelined":
        return kernels.matmul_pipelined(_settings(problem, plan))
    if plan.kernel == "ahead" and plan.stages > 1:
        return kernels.matmul_in_stages(plan.stages)
    return {"tiles": kernels.matmul_tiles, "ahead": kernels.matmul_ahead}[plan.kernel]


def _settings(problem: Problem, plan: Plan) -> Pipeline:
    """The compiler's settings of the plan."""
    once = _once(problem, plan)
    persistent = not once and not problem.grouped
    return Pipeline(
        stages=plan.stages, producer=True, cluster=math.prod(plan.cluster) if plan.share else 1,
        persistent=persistent, blocks=plan.grid * math.prod(plan.cluster) if persistent else None,
        order="any" if plan.back and not once else "keep",
    )  # fmt: skip


# The most groups whose tasks each thread counts before its first.
FEW_GROUPS = 16


def shares_last_tasks(problem: Problem, plan: Plan) -> bool:
    """Whether two blocks share each of the last tasks.

    Registers do not hold an epilogue besides.
    """
    if problem.offsets is None or problem.offsets.shape[0] > FEW_GROUPS or plan.tile[1] % 16:
        return False
    return _queued(problem, plan) and problem.plain and not problem.promote


def _queued(problem: Problem, plan: Plan) -> bool:
    """Whether blocks take their tasks from a queue: tiles of few rows and those whose weights come from memory
    take less and more time than others, and blocks of a batch that fell behind would read from memory again what
    the others have read."""
    return (problem.grouped == "rows" and plan.by_hand) or (plan.queue and not _once(problem, plan))


def _words(problem: Problem, plan: Plan) -> tuple[int, int]:
    """The shape of the queue's counter, and of a row of two numbers for each cluster."""
    return (1 + plan.grid, AHEAD) if plan.queue and plan.cluster != (1, 1) else (1, 1)


def _once(problem: Problem, plan: Plan) -> bool:
    """Whether there are no more tasks than blocks."""
    (m, n, _), (high, wide) = problem.shape, plan.cluster
    tiles = cdiv(m, plan.height * high) * cdiv(n, plan.tile[1] * wide)
    return not problem.grouped and problem.batch * tiles * plan.split <= plan.grid


def _packable(problem: Problem) -> dict[str, tuple[ArrayRef, bool]]:
    """The arrays that a plan can copy first, and whether the copy exchanges their last two axes: wgmma reads
    8-bit operands with K contiguous only."""
    found = {name: (x, must_transpose(problem, name)) for name, x in (("lhs", problem.lhs), ("rhs", problem.rhs))}
    for name, scale in (("scale_lhs", problem.left), ("scale_rhs", problem.right)):
        if scale.array is not None:
            found[name] = scale.array, False
    return found


def workspaces(problem: Problem, plan: Plan) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and element type of each array that the plan needs besides the caller's.

    "partial" holds the parts of a split product, [batch * parts, M, N], or [batch * parts, N, M] if the result is
    column-major, so that the second kernel reads and writes neighbours; "lhs", "rhs", "scale_lhs" and "scale_rhs"
    are copies in rows of whole cache lines.
    """
    found: dict[str, tuple[tuple[int, ...], str]] = {}
    if plan.split > 1:
        m, n, _ = problem.shape
        extents = (n, m) if by_columns(problem) else (m, n)
        found["partial"] = ((problem.batch * plan.split, *extents), problem.sums)
    for name in plan.pack:
        x, transposes = _packable(problem)[name]
        batch = 1 if x.strides[0] == 0 else x.shape[0]
        rows, columns = (x.shape[2], x.shape[1]) if transposes else x.shape[1:]
        unit = 128 // x.dtype.bytes
        found[name] = ((batch, rows, -(-columns // unit) * unit), _stored(x))
    if _queued(problem, plan):
        found["words"] = (_words(problem, plan), "s64")
    return found


def steps(problem: Problem, plan: Plan, work: Mapping[str, ArrayRef] | None = None) -> Iterator[Step]:
    """The calls that compute ``problem`` (already transposed if the plan says so), in order; none for an
    empty result.  ``work`` has an array for each of `workspaces`.
    """
    if problem.is_empty:
        return
    work = work or {}
    copies = []
    for name in plan.pack:
        x, transposes = _packable(problem)[name]
        step, packed = _packed(x, name, work[name], transposes)
        copies.append(step)
        if name == "lhs":
            problem = replace(problem, lhs=packed, lhs_major="row" if transposes else problem.lhs_major)
        elif name == "rhs":
            problem = replace(problem, rhs=packed, rhs_major="row" if transposes else problem.rhs_major)
        elif name == "scale_lhs":
            problem = replace(problem, left=replace(problem.left, array=packed))
        else:
            problem = replace(problem, right=replace(problem.right, array=packed))
    yield from _paired(copies)
    for offsets in problem.outer:
        for step in _product(problem, plan, offsets, work):
            renamed = tuple((f"work.{n}" if n in plan.pack else n, at) for n, at in step.sources)
            yield replace(step, sources=renamed)


def _stored(x: ArrayRef) -> str:
    """The type of the elements in memory."""
    return x.dtype.stored or x.dtype.name


def _packed(x: ArrayRef, name: str, work: ArrayRef, transposes: bool) -> tuple[Step, ArrayRef]:
    """The call that copies an array to aligned rows, and the copied array."""
    from tilemma.ops.kernels import pack, pack_transposed

    single = x.strides[0] == 0
    source = once(x)
    kernel = pack_transposed if transposes else pack
    given = (_in_memory(part(source, 0)), part(work, 0))
    constants: dict[str, Any] = {"T": _stored(x)}
    if not transposes:
        constants["ROWS"] = _rows(work.shape)
    step = Step(kernel, given, constants, ((name, 0), (f"work.{name}", 0)))
    strides = (0 if single else work.strides[0], work.strides[1], 1)
    shape = (x.shape[0], x.shape[2], x.shape[1]) if transposes else x.shape
    return step, work._replace(shape=shape, strides=strides, dtype=x.dtype)


# (elements, rows): how many rows a warp copies of arrays with at least so many elements.
ROWS = ((1 << 23, 8), (1 << 19, 2), (0, 1))


def _rows(shape: tuple[int, ...]) -> int:
    return next(rows for least, rows in ROWS if math.prod(shape) >= least)


def _paired(copies: list[Step]) -> Iterator[Step]:
    """The calls ``copies``, two that only copy rows as one."""
    from tilemma.ops.kernels import pack, pack_pair

    plain = [x for x in copies if x.kernel is pack]
    if len(plain) < 2:
        yield from copies
        return
    one, two = plain[:2]
    if one.constants["T"] != two.constants["T"]:
        yield from copies
        return
    constants = {**one.constants, "ROWS": min(x.constants["ROWS"] for x in (one, two))}
    yield Step(pack_pair, (*one.args, *two.args), constants, (*one.sources, *two.sources))
    yield from (x for x in copies if x is not one and x is not two)


def _in_memory(x: ArrayRef) -> ArrayRef:
    return x._replace(dtype=dtypes.dtype(_stored(x)))


def part(x: ArrayRef, offset: int) -> ArrayRef:
    # The owner is wrapped: the kernel's view has another shape than its owner.
    return x._replace(pointer=x.pointer + offset, owner=(x.owner,))


def once(x: ArrayRef) -> ArrayRef:
    """An operand that all batches share, as a single matrix: tensor maps have no stride 0."""
    return x._replace(shape=(1, *x.shape[1:])) if x.strides[0] == 0 else x


Source = tuple[str, int]
# From so many elements of a result on, a thread adds the parts of several: there are enough threads.
MANY = 1 << 19


def absent(problem: Problem, shape: tuple[int, ...], dtype: DType | None = None) -> tuple[ArrayRef, Source]:
    """A placeholder for a parameter that the kernel does not read."""
    return unread(problem.lhs, shape, problem.lhs.dtype if dtype is None else dtype), ("lhs", 0)


def unread(x: ArrayRef, shape: tuple[int, ...], dtype: DType) -> ArrayRef:
    """``x`` as an array of ``shape`` that a kernel does not read."""
    strides = (0,) * len(shape)
    return x._replace(pointer=x.pointer & -16, shape=shape, strides=strides, dtype=dtype, owner=(x.owner,))


def _scale(problem: Problem, scale: Scaling, name: str, offset: int) -> tuple[ArrayRef, Source]:
    if scale.array is None:
        return absent(problem, (1, 1, 1), f32)
    return once(part(scale.array, offset)), (name, offset)


def _product(problem: Problem, plan: Plan, at: Offsets, work: Mapping[str, ArrayRef]) -> Iterator[Step]:
    lhs, rhs = (once(part(x, o)) for x, o in zip((problem.lhs, problem.rhs), at[:2], strict=True))
    operands = ((lhs, ("lhs", at[0])), (rhs, ("rhs", at[1])))
    out = (part(problem.out, at[3]), ("out", at[3]))
    if plan.kernel == "resident":
        yield _resident(problem, plan, (*operands, out))
        return
    if plan.by_hand:
        problem = replace(problem, left=brought(problem.left), right=brought(problem.right))
    missing = absent(problem, (problem.batch, 1, 1)), absent(problem, (1, 1))
    c = missing[0] if problem.c is None else (part(problem.c, at[2]), ("c", at[2]))
    bias = missing[1] if problem.bias is None else (part(problem.bias, 0), ("bias", 0))
    scales = (
        _scale(problem, problem.left, "scale_lhs", at[4]),
        _scale(problem, problem.right, "scale_rhs", at[5]),
    )
    groups = absent(problem, (1,), s32)
    if problem.offsets is not None:
        groups = part(problem.offsets, 0), ("offsets", 0)
    product = {**_constants(problem, plan), **_storage(problem)}
    scalars = (problem.alpha, problem.beta)
    words: tuple[tuple[ArrayRef, Source], ...] = ()
    if plan.by_hand:
        words = (absent(problem, (1, 1), s64),)
        if _queued(problem, plan):
            words = ((part(work["words"], 0), ("work.words", 0)),)
    if "partial" not in work:
        constants = {**product, **_epilogue(problem, c[0], bias[0], out[0])}
        if plan.store == "tma" and by_columns(problem):
            out = transposed(out[0]), out[1]
            constants |= {"STORE": "turned", "OUT0": "N", "OUT1": "M"}
        if plan.by_hand:
            out, *edges = _in_parts(problem, out, plan)
            words = (*words, *edges)
            constants |= INSIDE if plan.inside else {}
        given = (*operands, *scales, groups, c, bias, out, *words)
        yield _step(_kernel(problem, plan), given, scalars, constants)
        return
    from tilemma.ops.pipelined import add_parts

    # Scales of single steps belong to the parts, the others to their sum.
    left, right = (x if x.stepwise else UNSCALED for x in (problem.left, problem.right))
    plain = replace(problem, c=None, bias=None, epilogue=Epilogue(), left=left, right=right)
    used = _scale(plain, left, "scale_lhs", at[4]), _scale(plain, right, "scale_rhs", at[5])
    parts = (part(work["partial"], 0), ("work.partial", 0))
    transposes = by_columns(problem)
    if transposes:
        parts = transposed(parts[0]), parts[1]
    constants = {**product, **_epilogue(plain, missing[0][0], missing[1][0], parts[0])}
    words = (*words, *_in_parts(problem, parts, plan)[1:]) if plan.by_hand else words
    yield _step(_kernel(problem, plan), (*operands, *used, groups, *missing, parts, *words), scalars, constants)
    left, right = (UNSCALED if x.stepwise else x for x in (problem.left, problem.right))
    final = replace(problem, left=left, right=right)
    used = _scale(final, left, "scale_lhs", at[4]), _scale(final, right, "scale_rhs", at[5])
    if transposes:
        final, used = transposed_product(final), used[::-1]
        parts, c, out = ((transposed(x), source) for x, source in (parts, c, out))
    constants = {**_epilogue(final, c[0], bias[0], out[0]), "SPLIT": plan.split, "ACC": problem.sums}
    constants["TS"] = product["TS"]
    constants["OVERLAP"] = long_k.overlap(problem, plan)
    constants["EACH"] = 4 if math.prod(problem.out.shape) >= MANY else 1
    yield _step(add_parts, (parts, *used, c, bias, out), scalars, constants)


# The dimensions of the parts of a result whose last tiles end at its edges.
INSIDE = {"OUT0": "ABOVE", "OUT1": "LEFT", "BESIDE": "BESIDE", "BELOW": "BELOW"}


def _in_parts(problem: Problem, out: tuple[ArrayRef, Source], plan: Plan) -> list[tuple[ArrayRef, Source]]:
    """The parts of the result that the plan stores apart (`edges.parts`), or placeholders for those besides it."""
    x, (name, at) = out
    if plan.inside:
        rows, columns, _ = plan.tile
        tile = (columns, rows) if by_columns(problem) else (rows, columns)
        return [(y, (name, at + offset)) for y, offset in parts_of(x, tile)]
    b, m, n = x.shape
    return [out, *(absent(problem, shape, x.dtype) for shape in ((b, m, 1), (b, 1, n), (b, 1, 1)))]


def _resident(problem: Problem, plan: Plan, given: tuple[tuple[ArrayRef, Source], ...]) -> Step:
    """The call of a plan whose rhs stays in shared memory."""
    from tilemma.ops.resident import matmul_resident

    (lhs, rhs), (out, source) = (x for x, _ in given[:2]), given[2]
    values = {**plan.constants, "TL": lhs.dtype.name, "TR": rhs.dtype.name, "TO": out.dtype.name}
    values["ACC"] = problem.acc
    if plan.store == "lines":
        lines = lines_of(out)
        assert lines is not None, out
        out = lines
        values |= {"OUT0": "LINES", "OUT1": out.shape[2]}
    sources = (*(x for _, x in given[:2]), source)
    return Step(matmul_resident, (lhs, rhs, out), values, sources)


def _step(
    kernel: Kernel,
    given: tuple[tuple[ArrayRef, Source], ...],
    scalars: tuple[float, float],
    constants: dict[str, Any],
) -> Step:
    return Step(kernel, (*(x for x, _ in given), *scalars), constants, tuple(source for _, source in given))


def _constants(problem: Problem, plan: Plan) -> dict[str, Any]:
    """The kernel's compile-time values: those of the plan, and those that simplify the computation of a block's
    task."""
    values = {**plan.constants, "ACC": problem.acc, "PROMOTE": problem.promote, "GROUPED": problem.grouped}
    values["TS"] = "f64" if problem.acc == "f64" else "f32"
    values["OFFSETS"] = 1 if problem.offsets is None else problem.offsets.shape[0]
    if registers.needs_more(problem, plan):
        values["BLOCKS"] = 1
    if plan.kernel != "pipelined":
        return values
    if plan.by_hand:
        for name, x in (("LHS", problem.left), ("RHS", problem.right)):
            way = "turned" if x.turned else "steps"
            values[f"RING_{name}"] = way if x.stepwise and not far_scales(x) else ""
    else:
        values["EARLY"] = True
        if problem.grouped:
            # TMA would write the whole of a group's last tile, over the next group's rows.
            values["STORE"] = "direct"
    if problem.grouped:
        values["OUT"] = 1
        if plan.by_hand:
            values["HALVES"] = shares_last_tasks(problem, plan)
        return values
    if not plan.by_hand or cdiv(problem.shape[0], plan.height * plan.cluster[0]) <= plan.raster:
        values["RASTER"] = 0
    if plan.by_hand:
        values["ONCE"] = _once(problem, plan)
        values["QUEUE"] = _queued(problem, plan)
        if values["QUEUE"]:
            values["WORDS"], values["WORD1"] = _words(problem, plan)
        values["BACK"] = plan.back and not values["ONCE"]
    values["OUT"] = plan.split if problem.batch == 1 else "B" if plan.split == 1 else "PARTS"
    return values


_EXTENTS = {"": (1, ""), "tensor": (1, ""), "vector": (1, "{}"), "steps": ("KB", "{}"), "blocks": ("KB", "{}B")}


def _scale_constants(name: str, axis: str, scale: Scaling, groups: str | int) -> dict[str, Any]:
    """The kind of an operand's scales, and the names of their dimensions."""
    steps, extent = _EXTENTS[scale.kind]
    axes = (steps, extent.format(axis) or 1)
    batch = 1 if scale.array is None else batches(scale.array, groups)
    first, last = axes[::-1] if scale.turned else axes
    return {
        f"SCALE_{name}HS": scale.kind, f"S{name}_BATCH": batch, f"S{name}0": first, f"S{name}1": last
    }  # fmt: skip


def _epilogue(problem: Problem, c: ArrayRef, bias: ArrayRef, out: ArrayRef) -> dict[str, Any]:
    """Compile-time values that describe the epilogue: its inputs and its operations."""
    return {
        **epilogue_constants(problem, c, bias, out),
        **_scale_constants("L", "M", problem.left, _group_names(problem)[0]),
        **_scale_constants("R", "N", problem.right, _group_names(problem)[1]),
    }


def epilogue_constants(problem: Problem, c: ArrayRef, bias: ArrayRef, out: ArrayRef) -> dict[str, Any]:
    """Those of alpha, addend, bias and activation, without scales."""
    e = problem.epilogue
    batched = problem.bias is not None and problem.bias.strides[0] != 0 and problem.bias.shape[0] != 1
    return {
        "TC": c.dtype.name,
        "TB": bias.dtype.name,
        "TO": out.dtype.name,
        "C0": "M" if problem.c is not None else 1,
        "C1": "N" if problem.c is not None else 1,
        "BIAS_BATCH": problem.bias.shape[0] if problem.bias is not None and batched else 1,
        "BIAS": {"columns": "N", "rows": "M", "": 1}[e.bias],
        "SCALE": e.scaled,
        "ADDEND": e.addend,
        "ALONG": e.bias,
        "ACTIVATION": e.activation,
    }


def _group_names(problem: Problem) -> tuple[str | int, str | int]:
    """The first dimensions of the parameters of lhs and of rhs."""
    experts = "B" if problem.offsets is None else problem.offsets.shape[0]
    return experts if problem.grouped == "columns" else "B", experts if problem.grouped == "rows" else "B"


def batches(x: ArrayRef, name: str | int) -> str | int:
    """The first dimension of an operand's parameter."""
    return 1 if x.strides[0] == 0 or x.shape[0] == 1 else name


def _storage(problem: Problem) -> dict[str, Any]:
    """Element type of the operands, and which axis of each comes first in memory."""
    left = ("M", "K") if problem.lhs_major == "row" else ("K", "M")
    right = ("N", "K") if problem.rhs_major == "row" else ("K", "N")
    return {
        "TL": problem.lhs.dtype.name,
        "TR": problem.rhs.dtype.name,
        "LHS_BATCH": batches(problem.lhs, _group_names(problem)[0]),
        "RHS_BATCH": batches(problem.rhs, _group_names(problem)[1]),
        "LHS": problem.lhs_major,
        "RHS": problem.rhs_major,
        "LHS0": left[0],
        "LHS1": left[1],
        "RHS0": right[0],
        "RHS1": right[1],
    }
