"""The plan of a compiled kernel: instructions, tiling, layouts, copies, synchronisation, and the reasons.

It is read from the decided tile IR, not recorded by the passes, so that it cannot disagree with the code.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from typing import Any

from tilemma.atoms import MmaAtom, catalogue
from tilemma.display import Displayed
from tilemma.errors import Span, singular
from tilemma.ir import tile as t
from tilemma.ir.expr import value_of
from tilemma.ir.synchronisation import SYNC_NAMES
from tilemma.ir.tiles import describe
from tilemma.ir.types import Space, View
from tilemma.ir.walk import declarations, walk
from tilemma.layouts import Major, shared_layout
from tilemma.passes import Decision
from tilemma.records import record


@record(frozen=False, slots=False)
class Explanation(Displayed):
    """A kernel's plan as data (`to_json`) and as a short text (`render`).

    ``synchronisation`` counts the decided operations; ``inserted`` has an entry for each that the compiler
    inserted, with the dependences that it serves: "earlier" has to be over before "later", "proxy" where the data
    passes from the generic to the async proxy.
    """

    kernel: str
    arch: str
    launches: list[dict[str, Any]]
    multiplies: list[dict[str, Any]]
    fragments: list[dict[str, Any]]
    buffers: list[dict[str, Any]]
    copies: list[dict[str, Any]]
    stores: list[dict[str, Any]]
    synchronisation: dict[str, int]
    inserted: list[dict[str, Any]]
    decisions: list[Decision]
    registers: int | None = None
    seconds: float | None = None
    warnings: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<tilemma plan of {self.kernel} on {self.arch}; print it, or see .to_json()>"

    def __str__(self) -> str:
        return self.render()

    def to_json(self) -> dict[str, Any]:
        data = {k: v for k, v in self.__dict__.items() if k != "decisions"}
        return {**data, "decisions": [d.to_json() for d in self.decisions]}

    def render(self, limit: int | None = None) -> str:
        """At most ``limit`` lines: launches, instructions, layouts, copies, synchronisation, warnings."""
        lines = [f"plan for {self.kernel} on {self.arch}"]
        for x in self.launches:
            registers = f", {self.registers} registers a thread" if self.registers else ""
            size = f"{x['threads']} threads a block, {x['shared']} bytes of shared memory"
            option = f", for ptxas {x['option']}" if x["option"] else ""
            lines.append(f"  launch {x['entry']}: {size}{registers}{option}")
        for m in self.multiplies:
            counts = "x".join(str(n) for n in m["tiles"])
            reason = f"; {m['reason']}" if m.get("reason") else ""
            text = f"{counts} of them (M x N x K) for each {m['unit']}: {m['tile']}{reason}"
            lines.append(f"  multiply {m['atom']}, {text}")
            for name, d in m.get("descriptors", {}).items():
                fields = f"LBO {d['lbo']}, SBO {d['sbo']} bytes, {d['swizzle']}-byte swizzle, {d['bits']}"
                lines.append(f"  descriptor {name} ({d['buffer']}, {d['major']}-major): {fields}")
        for f in self.fragments:
            if f["role"] == "C":
                lines.append(
                    f"  accumulator {f['name']}: {f['dtype']} {f['shape']}, {f['registers']} registers a lane"
                )
        for b in self.buffers:
            lines.append(f"  {b['name']}: {b['dtype']} {b['shape']} at byte {b['offset']}, {b['layout']}")
        for c in self.copies:
            lines.append(
                f"  copy {c['from']} => {c['to']}: {c['engine']}, {c['vector']} bytes, {c['threads']} threads"
            )
        for s in self.stores:
            lines.append(f"  store {s['fragment']} => {s['to']}: {s['method']}")
        inserted = ", ".join(
            f"{n} {name.removesuffix('s') if n == 1 else name}" for name, n in self.synchronisation.items()
        )
        lines.append(f"  synchronisation: {inserted or 'none needed'}")
        # A group of copies or multiplies serves the wait that counts it.
        lines += [f"    {x['text']}" for x in self.inserted if not x["operation"].endswith(" group")]
        lines += [f"  {d.subject} {d.text}" for d in self.decisions if d.pass_name == "event simulation"]
        planned = (d for d in self.decisions if d.pass_name == "pipeline" and not d.warning)
        lines += [f"  pipeline: {d.subject}: {d.text}" for d in planned]
        lines += [f"  warning: {w}" for w in self.warnings]
        # An entry that occurs several times in a program, such as in a peeled iteration, is printed once.
        lines = list(dict.fromkeys(lines))
        if limit is not None and len(lines) > limit:
            lines = [*lines[: limit - 1], f"  ... {len(lines) - limit + 1} lines more: tilemma explain"]
        return "\n".join(map(singular, lines))


def explain(
    kernel: t.Kernel,
    arch: str,
    decisions: tuple[Decision, ...],
    launches: list[dict[str, Any]],
    inserted: list[dict[str, Any]],
    registers: int | None = None,
) -> Explanation:
    """The plan of a decided kernel.  ``launches``: entry, threads, shared bytes, ptxas's option of each launch;
    ``inserted``: the inserted synchronisation."""
    table = declarations(kernel)
    ops = list(walk(kernel.body))
    loads = {op.fragment.name: op.src for op in ops if isinstance(op, t.Load)}
    reasons = {d.span: str(d.data.get("reason", "")) for d in decisions if d.pass_name == "atoms"}
    return Explanation(
        kernel.name,
        arch,
        launches,
        [_multiply(op, table, loads, reasons) for op in ops if isinstance(op, t.Mma)]
        + [_lane_multiply(op) for op in ops if isinstance(op, t.LaneMma)],
        [_fragment(op) for op in ops if isinstance(op, t.DeclareFragment) and op.plan is not None],
        [_buffer(op) for op in ops if isinstance(op, t.Alloc) and op.buffer.space is Space.SHARED],
        [_copy(op) for op in ops if isinstance(op, t.Copy)],
        [_store(op) for op in ops if isinstance(op, t.Store)],
        _synchronisation(ops),
        inserted,
        list(decisions),
        registers,
        warnings=[f"{d.subject}: {d.text}" for d in decisions if d.warning],
    )


def _multiply(
    op: t.Mma, table: dict[str, t.Op], loads: dict[str, View], reasons: dict[Span | None, str]
) -> dict[str, Any]:
    assert op.atom is not None and op.tiles is not None
    atom = catalogue[op.atom]
    assert isinstance(atom, MmaAtom)
    acc = table[op.acc.name]
    assert isinstance(acc, t.DeclareFragment) and acc.plan is not None
    m, n = acc.plan.shape
    data: dict[str, Any] = {
        "atom": op.atom,
        "contract": op.contract.value,
        "tiles": list(op.tiles),
        "unit": "warpgroup" if atom.threads == 128 else "warp",
        "tile": f"{m}x{n}x{op.tiles[2] * atom.shape[2]} by {acc.plan.level}",
        "ptx": atom.ptx,
    }
    if reasons.get(op.span):
        data["reason"] = reasons[op.span]
    for name, operand in (("a", op.a), ("b", op.b)):
        declared = table.get(operand.name) if isinstance(operand, t.FragmentRef) else None
        if isinstance(declared, t.DeclareFragment) and declared.plan is not None:
            data[name] = declared.plan.residence
        elif isinstance(operand, View):
            data[name] = "shared"
        if data.get(name) == "shared":
            view = loads.get(operand.name) if isinstance(operand, t.FragmentRef) else operand
            transposed = op.contract.a_transposed if name == "a" else op.contract.b_transposed
            found = _descriptor(view, transposed, atom, name, table)
            if found is not None:
                data.setdefault("descriptors", {})[name.upper()] = found
    return data


def _lane_multiply(op: t.LaneMma) -> dict[str, Any]:
    """The multiply of one lane's registers: one instruction of its warp."""
    atom = catalogue[op.atom]
    assert isinstance(atom, MmaAtom)
    shape = "x".join(map(str, atom.shape))
    return {
        "atom": op.atom,
        "tiles": [1, 1, 1],
        "unit": "warp",
        "tile": f"{shape} by the registers of each lane",
        "ptx": atom.ptx,
        "a": "registers",
        "b": "registers",
    }


def _descriptor(
    view: View | None, transposed: bool, atom: MmaAtom, name: str, table: dict[str, t.Op]
) -> dict[str, Any] | None:
    """The fields of the first descriptor of an operand in shared memory, start relative to its buffer."""
    alloc = table.get(view.base.name) if view is not None else None
    if view is None or not isinstance(alloc, t.Alloc) or alloc.layout is None or not alloc.layout.swizzle_atom:
        return None
    columns = value_of(view.base.shape[-1])
    assert columns is not None
    rows, swizzle = alloc.layout.rows, alloc.layout.swizzle_atom if alloc.layout.swizzle_atom > 16 else 0
    major: Major
    shape, major = ((columns, rows), "MN") if transposed else ((rows, columns), "K")
    tile = shared_layout(view.dtype, *shape, major, swizzle)
    extent, depth = atom.operands[name.upper()].memory_shape
    d = tile.descriptor(0, 0, extent, depth)
    return {
        "buffer": view.base.name,
        "major": major,
        "lbo": d.lbo,
        "sbo": d.sbo,
        "swizzle": d.swizzle,
        "base_offset": d.base_offset,
        "bits": f"{d.encode():#018x}",
    }


def _fragment(op: t.DeclareFragment) -> dict[str, Any]:
    plan = op.plan
    assert plan is not None
    registers = 0
    if plan.residence == "registers":
        record = catalogue[plan.atom]
        operand = {"A": "a", "B": "b", "C": "d"}.get(plan.role, "a")
        registers = getattr(record, operand).registers * plan.repeat[0] * plan.repeat[1]
    return {
        "name": op.name,
        "role": plan.role,
        "dtype": plan.dtype.name,
        "shape": "x".join(str(n) for n in plan.shape),
        "level": str(plan.level),
        "residence": plan.residence,
        "registers": registers,
        "atom": plan.atom,
        "grid": list(plan.grid),
    }


def _buffer(op: t.Alloc) -> dict[str, Any]:
    b, plan = op.buffer, op.layout
    shape = "x".join(str(value_of(e)) for e in b.shape) + (f" x{b.copies}" if b.copies else "")
    data: dict[str, Any] = {"name": b.name, "dtype": b.dtype.name, "shape": shape, "offset": op.offset}
    if plan is None:
        return {**data, "layout": "not laid out", "bytes": None}
    data |= {"bytes": plan.total(b.copies), "slab": plan.swizzle_atom}
    if plan.swizzle_atom:
        columns = value_of(b.shape[-1])
        assert columns is not None
        tile = shared_layout(b.dtype, plan.rows, columns, "K", plan.swizzle_atom if plan.swizzle_atom > 16 else 0)
        atom = plan.swizzle_atom
        return {**data, "layout": f"{atom}-byte swizzle, {tile}" if atom > 16 else str(tile)}
    return {**data, "layout": f"rows of {plan.pitch} bytes"}


def _copy(op: t.Copy) -> dict[str, Any]:
    plan = op.plan
    return {
        "from": _view(op.src),
        "to": _view(op.dst),
        "engine": plan.engine if plan else op.engine,
        "vector": plan.vector if plan else None,
        "threads": plan.threads if plan else None,
        "level": str(plan.level) if plan else None,
    }


def _store(op: t.Store) -> dict[str, Any]:
    method = op.plan.method if op.plan else "not decided"
    return {"fragment": op.fragment.name, "to": _view(op.dst), "method": method}


def _view(v: View) -> str:
    if v.is_whole:
        return v.base.name
    return f"{v.base.name}[{' x '.join(describe(e) for e in v.shape)}]"


def _synchronisation(ops: list[t.Op]) -> dict[str, int]:
    names = (SYNC_NAMES.get(type(op)) for op in ops if not isinstance(op, t.Sync))
    return dict(Counter(f"{name}s" for name in names if name))
