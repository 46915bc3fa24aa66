"""The order in which operands in registers take K: not that of the instruction, where another loads faster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilemma.atoms import MmaAtom
from tilemma.dtypes import DType
from tilemma.ir.plans import FragmentPlan, KOrder
from tilemma.ir.tile import FragmentRef, Kernel, Load, Mma
from tilemma.ir.types import View
from tilemma.ir.walk import walk
from tilemma.passes.contraction import fragment_uses
from tilemma.records import record
from tilemma.targets.ptx.passes.load_plans import in_vectors, widens

# Elements of a quad of lanes, and of one lane, that the conversion of packed elements makes of one register.
QUAD, UNIT = 32, 8
# Of operands that have one element in a register, 16 bytes at a time: in the order of K, and of f64.
IN_ORDER, NEIGHBOURS = KOrder(0, 0), KOrder(0)


@record
class _Operand:
    """An operand of a multiply: its fragment ("" where it has none), and how many rows of it a warp multiplies.

    ``stored``: the type of its elements in memory; None where lanes cannot read 16 bytes along K at a time.
    """

    name: str
    stored: DType | None
    rows: int


def k_orders(
    kernel: Kernel, chosen: Mapping[int, tuple[MmaAtom, int, Mma]], plans: Mapping[str, FragmentPlan], arch: str
) -> dict[str, KOrder]:
    """The operands that take K in an order of their own, and which.

    A sum over K may be taken in any order, if both operands are loaded in it and nothing else reads or changes
    them.  Lanes load 16 bytes along K at a time for multiplies on the CUDA cores, and for f64, where a lane of the
    instructions has every fourth element.  Of narrow elements, which become pairs of 16 bits, a lane takes
    neighbours, which lie in one word.  ``chosen``: for the identity of each multiply, its instruction, how many
    along K, and the multiply with names of its operands.
    """
    loads: dict[str, list[Load]] = {}
    refused, visited = {""}, set()
    for op in walk(kernel.body):
        if isinstance(op, Load):
            loads.setdefault(op.fragment.name, []).append(op)
        visited |= {x.name for use, x in fragment_uses(op) if use not in ("A", "B", "load", "fill")}
    found: dict[str, KOrder] = {}
    pairs: list[tuple[str, str]] = []
    for op in walk(kernel.body):
        if not isinstance(op, Mma) or id(op) not in chosen:
            continue
        atom, tiles, named = chosen[id(op)]
        a, b = _operands(op, named, loads, plans)
        order = _order(atom, tiles * atom.shape[2], a, b, arch)
        if atom.kind != "fma":
            pairs.append((a.name, b.name))
        for x in (a, b):
            # In the order of K each operand is loaded as its rows lie.
            own = order if atom.kind != "fma" or x.stored is not None else None
            seen = x.name in visited and own != IN_ORDER
            if own is None or seen or found.setdefault(x.name, own) != own:
                refused.add(x.name)
    while any(refused & set(names) and not refused >= set(names) for names in pairs):
        refused |= {n for names in pairs if refused & set(names) for n in names}
    return {name: order for name, order in found.items() if name not in refused}


def _operands(
    op: Mma, named: Mma, loads: Mapping[str, list[Load]], plans: Mapping[str, FragmentPlan]
) -> Iterator[_Operand]:
    contract = op.contract
    for x, ref, transposed in ((op.a, named.a, contract.a_transposed), (op.b, named.b, contract.b_transposed)):
        name = ref.name if isinstance(ref, FragmentRef) else ""
        sources = [(x, x.dtype)] if isinstance(x, View) else [(y.src, y.stored) for y in loads.get(x.name, ())]
        types = {t for _, t in sources}
        readable = bool(name) and len(types) == 1 and all(in_vectors(v, transposed) for v, _ in sources)
        rows = plans[name].shape[0] // plans[name].grid["AB".index(plans[name].role)] if readable else 0
        yield _Operand(name, types.pop() if readable else None, rows)


def _order(atom: MmaAtom, depth: int, a: _Operand, b: _Operand, arch: str) -> KOrder | None:
    """The order for a multiply of ``depth`` along K; None where it is the instruction's own."""
    if atom.kind == "fma":
        return IN_ORDER
    if a.stored is None or b.stored is None:
        return None
    if atom.kind != "mma.sync":
        return None
    if atom.a.dtype.bits == 64:
        return NEIGHBOURS if depth % 8 == 0 else None
    narrow = [x for x, operand in ((a, atom.a), (b, atom.b)) if x.stored is not operand.dtype]
    if len(narrow) != 1 or depth % QUAD or atom.a.dtype.bits != 16:
        return None
    (x,), (y,) = narrow, [y for y in (a, b) if y is not narrow[0]]
    assert x.stored is not None
    # The words of the other operand are loaded without ldmatrix, and of 4 bits rearranged.
    if not widens(x.stored, atom.a.dtype, arch) or y.rows > x.rows:
        return None
    # Runs of 16 elements: 8 lanes read 16 bytes each of the wide operand without bank conflicts.
    return KOrder(2 * UNIT if depth % (2 * QUAD) == 0 else UNIT, UNIT // 2 if x.stored.bits == 4 else 1)
