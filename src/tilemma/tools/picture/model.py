"""Everything that a page shows, as records: read from the compiled kernel and from one run on the PTX machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from tilemma.atoms import catalogue
from tilemma.atoms.atom import Operand
from tilemma.compiler import Compiled
from tilemma.errors import TilemmaError
from tilemma.explain import Explanation
from tilemma.ir import tile as t
from tilemma.ir.expr import value_of
from tilemma.ir.types import Space
from tilemma.ir.walk import walk
from tilemma.kernels import Kernel, facts_of
from tilemma.launch import Launch, Size, evaluate
from tilemma.layouts import SharedLayout, plain_layout, shared_layout
from tilemma.records import record
from tilemma.targets.ptx.target import Target
from tilemma.tools.picture.code import Listing, ptx, sass, source
from tilemma.tools.picture.program import Level, Role, declared, levels, roles
from tilemma.tools.picture.run import Ran, run
from tilemma.tools.problem import make_problem, parse_scalars, parse_shape
from tilemma.tools.show import operands_of
from tilemma.tools.sizes import smallest_sizes


@record
class Buffer:
    """A buffer or event in shared memory; ``bytes`` of each of ``copies`` slots (0: no ring)."""

    name: str
    kind: str
    offset: int
    bytes: int
    copies: int
    line: int
    about: str
    layout: SharedLayout | None


@record
class LaunchView:
    """One launch: its grid as the plan computes it and at the run's sizes."""

    launch: Launch
    grid: tuple[str, ...]
    counts: tuple[int, ...] | None
    levels: tuple[Level, ...]
    roles: tuple[Role, ...]
    buffers: tuple[Buffer, ...]
    shared_limit: int
    lines: Mapping[str, int]
    ran: Ran | None


@record
class Model:
    """A page's content; ``why_not``: the reason that there is no run."""

    kernel: str
    arch: str
    dims: Mapping[str, int]
    chosen: bool
    file: str
    explanation: Explanation
    launches: tuple[LaunchView, ...]
    fragments: Mapping[str, Mapping[str, Operand]]
    listings: tuple[Listing, ...]
    seed: int
    why_not: str


def model(
    kernel: Kernel, constants: dict[str, Any], arch: str, shape: str | None, args: Sequence[str], seed: int
) -> Model:
    """Compile ``kernel``, run it once, and collect what the page shows."""
    built = kernel.traced(**constants)
    why_not, dims, chosen, scalars = "", parse_shape(built, shape), False, {}
    values: dict[str, Any] | None = None
    try:
        scalars = parse_scalars(built, args)
    except TilemmaError as error:
        if args:
            raise
        why_not = error.render()
    if not why_not and shape is None and dims:
        smallest = smallest_sizes(kernel, constants, arch, scalars)
        if smallest is None:
            why_not = "no small sizes were found that the kernel accepts: give --shape"
        dims, chosen = smallest or dims, smallest is not None
    if why_not:
        # Some kernels are compiled for the extents of their buffers.
        compiled = kernel.compile(arch, sizes=dims or None, **constants)
    else:
        built = kernel.build(sizes=dims, **constants)
        problem = make_problem(built, dims, scalars, seed)
        compiled = kernel.compile(arch, facts=facts_of(problem.arrays), sizes=dims, **constants)
        values = {**problem.arrays, **problem.scalars}
    ran: list[Ran] = []
    if values is not None:
        try:
            ran = run(compiled, values, seed)
        except TilemmaError as error:
            why_not = error.render()
    return _model(kernel.name, compiled, {} if why_not else dims, scalars, chosen, ran, seed, why_not)


def _model(
    name: str, compiled: Compiled, dims: Mapping[str, int], scalars: Mapping[str, Any], chosen: bool,
    ran: list[Ran], seed: int, why_not: str,
) -> Model:  # fmt: skip
    explanation = compiled.explain()
    file, text = source(compiled.source)
    blocks = [op for op in compiled.kernel.body if isinstance(op, t.Parallel)]
    views = [
        _launch(block, launch, compiled, dims, scalars, ran[i] if i < len(ran) else None)
        for i, (block, launch) in enumerate(zip(blocks, compiled.launches, strict=True))
    ]
    atoms = dict.fromkeys(m["atom"] for m in explanation.multiplies)
    fragments = {a: {k: o for k, o in operands_of(catalogue[a]).items() if o.in_registers} for a in atoms}
    listings = (text, ptx(compiled.ptx, file), sass(compiled, file))
    return Model(
        name,
        compiled.arch,
        dict(dims),
        chosen,
        file,
        explanation,
        tuple(views),
        fragments,
        listings,
        seed,
        why_not,
    )


def _launch(
    block: t.Parallel, launch: Launch, compiled: Compiled, dims: Mapping[str, int], scalars: Mapping[str, Any],
    ran: Ran | None,
) -> LaunchView:  # fmt: skip
    names = {**dims, **{k: v for k, v in scalars.items() if isinstance(v, int)}}
    try:
        counts: tuple[int, ...] | None = tuple(evaluate(g, names) for g in launch.grid)
    except KeyError:
        counts = None
    lines = declared(block)
    return LaunchView(
        launch, tuple(spelled(g) for g in launch.grid), counts, tuple(levels(block)),
        tuple(roles(block, prod(launch.block))), tuple(_buffers(block, launch, lines)),
        Target.of(compiled.arch).shared_limit, lines, ran,
    )  # fmt: skip


def _buffers(block: t.Parallel, launch: Launch, lines: Mapping[str, int]) -> list[Buffer]:
    allocs = {
        op.buffer.name: op for op in walk((block,)) if isinstance(op, t.Alloc) and op.buffer.space is Space.SHARED
    }
    found = []
    for s in launch.shared_names:
        layout, about = None, f"{max(1, s.copies)} mbarrier{'s' if s.copies > 1 else ''}"
        if s.kind == "buffer":
            layout, about = _layout(allocs[s.name])
        found.append(Buffer(s.name, s.kind, s.offset, s.bytes, s.copies, lines.get(s.name, 0), about, layout))
    return found


def _layout(op: t.Alloc) -> tuple[SharedLayout | None, str]:
    """The layout of one slot for the picture of its banks, and the buffer in words."""
    b, plan = op.buffer, op.layout
    shape = [value_of(e) for e in b.shape]
    about = f"{b.dtype.name} {'x'.join(map(str, shape))}"
    columns = shape[-1] if shape else None
    if plan is None or columns is None or b.dtype.bits < 8:
        return None, about
    if plan.swizzle_atom:
        how = f"{plan.swizzle_atom}-byte swizzle" if plan.swizzle_atom > 16 else "no swizzle, 8x16-byte atoms"
        swizzle = plan.swizzle_atom if plan.swizzle_atom > 16 else 0
        return shared_layout(b.dtype, plan.rows, columns, "K", swizzle), f"{about}, {how}"
    about += f", rows of {plan.pitch} bytes"
    size = b.dtype.bits // 8
    if plan.pitch % size or columns * b.dtype.bits % 128 or plan.pitch // size < columns:
        return None, about
    return plain_layout(b.dtype, plan.rows, columns, "K", plan.pitch // size - columns), about


_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "floormod": "%", "lt": "<"}


def spelled(size: Size, inside: bool = False) -> str:
    """A size of a launch as a formula of the dimensions; ``inside`` an operator, with parentheses."""
    if not isinstance(size, tuple):
        return str(size)
    op, *operands = size
    if op == "wrap":  # sizes of a launch that is legal do not wrap
        return spelled(operands[0], inside)
    if op in _INFIX and len(operands) == 2:
        a, b = (spelled(x, True) for x in operands)
        return f"({a} {_INFIX[op]} {b})" if inside else f"{a} {_INFIX[op]} {b}"
    return f"{op}({', '.join(spelled(x) for x in operands)})"
