"""Atomic operations on elements: `atom` where the hardware has the operation, else a loop around `atom.cas`."""

from __future__ import annotations

from tilemma import dtypes
from tilemma.ir import tile
from tilemma.ir.expr import BinaryOp, Element, Expr, Var, binary, walk
from tilemma.ir.lane import Imm, Mem, Reg, Vec
from tilemma.targets.ptx.lower.context import Lowering, lowers
from tilemma.targets.ptx.lower.control import assign
from tilemma.targets.ptx.lower.convert import convert, register, register_type
from tilemma.targets.ptx.lower.expressions import scalar
from tilemma.targets.ptx.lower.memory import Place, place
from tilemma.targets.ptx.lower.regions import Value

# PTX ISA, 9.7.13.5: which operations `atom` has on which types.
_BITS = {"s32": "b32", "u32": "b32", "s64": "b64", "u64": "b64"}
_WORDS = {**_BITS, "f32": "b32", "f64": "b64"}
_ORDERED = {"s32": "s32", "u32": "u32", "s64": "s64", "u64": "u64"}
_INSTRUCTIONS = {
    "add": {
        "s32": "u32",
        "u32": "u32",
        "s64": "u64",
        "u64": "u64",
        "f32": "f32",
        "f64": "f64",
        "f16": "noftz.f16",
    },
    "exch": _WORDS,
    "min": _ORDERED,
    "max": _ORDERED,
    "and": _BITS,
    "or": _BITS,
    "xor": _BITS,
    "cas": _WORDS,
}


@lowers(tile.Atomic)
def lower_atomic(lo: Lowering, op: tile.Atomic) -> None:
    """Once for an instance; the old value reaches the other lanes of a warp by a shuffle.

    Instances of more than a warp have their old value through shared memory (passes/share_old_values.py): here it
    is that of the thread that acts.
    """
    e = lo.e
    t = op.view.dtype
    instance = lo.instance
    elected = lo.elected(instance)
    value, wanted = _operands(lo, op, elected)
    spot = place(lo, op.view, ())
    ok = e.both(spot.valid, elected)
    if ok is False:
        return
    old = e.reg("old", value.type, mutable=True)
    if isinstance(ok, Reg) and op.result is not None:
        assign(lo, old, Imm(0.0 if old.type in ("f32", "f64") else 0, old.type))
    name = "add" if op.name == "sub" else op.name
    if t.name in _INSTRUCTIONS[name]:
        given: Value = register(e, _negated(lo, value, t), t) if op.name == "sub" else value
        source = (given,) if wanted is None else (wanted, given)
        guard = ok if isinstance(ok, Reg) else None
        mnemonic = f"atom.{spot.space}.{name}.{_INSTRUCTIONS[name][t.name]}"
        e.do(mnemonic, (old,), (spot.address, *source), guard=guard)
    elif isinstance(ok, Reg):
        with e.branch(ok):
            _compare_and_swap(lo, op, spot, old, value, wanted)
    else:
        _compare_and_swap(lo, op, spot, old, value, wanted)
    if op.result is None:
        return
    if 1 < instance.threads <= 32:
        _broadcast(lo, old)
    target = lo.variables.get(op.result.name)
    if target is None:
        target = e.reg(op.result.name, register_type(op.result.dtype), mutable=True)
        lo.variables[op.result.name] = target
    assign(lo, target, convert(e, old, t, op.result.dtype, lo.arch))


def _operands(lo: Lowering, op: tile.Atomic, elected: Reg | bool) -> tuple[Reg, Reg | None]:
    """The operation's value, and the expected one of a compare-and-swap, in the type of the element."""
    t = op.view.dtype

    def operand(x: Expr) -> Reg:
        return register(lo.e, convert(lo.e, scalar(lo, x), x.type, t, lo.arch), t)

    def both() -> tuple[Reg, Reg | None]:
        return operand(op.value), None if op.compare is None else operand(op.compare)

    given = (op.value,) if op.compare is None else (op.value, op.compare)
    reads = {x.view.base.name for e in given for x in walk(e) if isinstance(x, Element)}
    if op.view.base.name in reads and isinstance(elected, Reg):
        # Only the elected thread reads the array: reads of other threads would race with its operation.
        with lo.where(elected):
            return both()
    return both()


def _compare_and_swap(
    lo: Lowering, op: tile.Atomic, spot: Place, old: Reg, value: Reg, wanted: Reg | None
) -> None:
    """The operation by `atom.cas` on the element's bits, again until no other thread came between."""
    e, t = lo.e, op.view.dtype
    words = f"b{t.bits}"
    mnemonic, address = f"atom.{spot.space}.cas.{words}", spot.address
    desired = _as_bits(lo, value, words)
    if wanted is not None:
        seen = _swap(lo, mnemonic, address, _as_bits(lo, wanted, words), desired)
        e.do(_move(old.type), (old,), (_from_bits(lo, seen, old.type, t),))
        return
    zero = Imm(0, words)
    current = e.reg("current", words, mutable=True)
    e.do(mnemonic, (current,), (address, zero, zero))
    with e.collect("loop") as body:
        e.do(_move(old.type), (old,), (_from_bits(lo, current, old.type, t),))
        new = desired if op.name == "exch" else _as_bits(lo, _combined(lo, op, old, value), words)
        seen = _swap(lo, mnemonic, address, current, new)
        done = e.reg("done", "pred", mutable=True)
        e.do(f"setp.eq.{words}", (done,), (seen, current))
        e.do(_move(words), (current,), (seen,))
        attempt = tuple(body)
    e.until(attempt, done)


def _swap(lo: Lowering, mnemonic: str, address: Mem, wanted: Value, new: Value) -> Reg:
    seen = lo.e.reg("seen", mnemonic.rpartition(".")[2], mutable=True)
    lo.e.do(mnemonic, (seen,), (address, wanted, new))
    return seen


def _combined(lo: Lowering, op: tile.Atomic, old: Reg, value: Reg) -> Reg:
    """``old OP value`` in a register of the element's type; sums of narrow integers keep their low bits."""
    e, t = lo.e, op.view.dtype
    names = "atomic_old", "atomic_value"
    lo.variables[names[0]], lo.variables[names[1]] = old, value
    name: BinaryOp = op.name  # type: ignore[assignment]
    made = binary(name, Var(names[0], t), Var(names[1], t))
    result = scalar(lo, made)
    del lo.variables[names[0]], lo.variables[names[1]]
    if t.is_float:
        return register(e, convert(e, result, made.type, t, lo.arch), t)
    return register(e, result, made.type)


def _move(kind: str) -> str:
    return f"mov.{kind}" if kind != "b16" else "mov.b16"


def _as_bits(lo: Lowering, v: Reg, words: str) -> Reg:
    """The low bits of ``v`` in a register that `atom.cas` takes."""
    e = lo.e
    if v.type in ("f32", "f64") or words != "b16":
        if v.type == words:
            return v
        made = e.reg("bits", words, mutable=True)
        e.do(f"mov.{words}", (made,), (v,))
        return made
    if v.type == "b16":
        return v
    halves = e.regs("half", "b16", 2, mutable=True)
    e.do("mov.b32", (Vec(halves),), (v,))
    return halves[0]


def _from_bits(lo: Lowering, v: Reg, kind: str, t: dtypes.DType) -> Reg:
    """``v``, the bits of an element of type ``t``, in a register of ``kind``."""
    e = lo.e
    if v.type == kind:
        return v
    made = e.reg("was", kind, mutable=True)
    if v.type == "b16":
        sign = "s" if t.kind == "int" else "u"
        e.do(f"cvt.{sign}32.{sign}16", (made,), (v,))
    else:
        e.do(f"mov.{v.type}", (made,), (v,))
    return made


def _broadcast(lo: Lowering, value: Reg) -> None:
    """Broadcast lane 0's value to the lanes of the warp; `shfl` moves 32 bits at a time."""
    e = lo.e
    wide, narrow = value.type in ("s64", "u64", "f64"), value.type == "b16"
    if not (wide or narrow):
        e.do("shfl.sync.idx.b32", (value,), (value, Imm(0), Imm(31), Imm(-1, "b32")))
        return
    parts = e.regs("part", "b32" if wide else "b16", 2, mutable=True)
    if wide:
        e.do("mov.b64", (Vec(parts),), (value,))
        words = parts
    else:
        words = e.regs("word", "b32", 1, mutable=True)
        e.do("mov.b32", words, (Vec((value, value)),))
    for word in words:
        e.do("shfl.sync.idx.b32", (word,), (word, Imm(0), Imm(31), Imm(-1, "b32")))
    if wide:
        e.do("mov.b64", (value,), (Vec(parts),))
    else:
        e.do("mov.b32", (Vec(parts),), words)
        e.do("mov.b16", (value,), (parts[0],))


def _negated(lo: Lowering, v: Reg, t: dtypes.DType) -> Value:
    e = lo.e
    if not t.is_float:
        return e.pure(f"neg.s{max(32, t.bits)}", v.type, v)
    if t.bits >= 32:
        return e.pure(f"neg.f{t.bits}", v.type, v)
    return e.pure("xor.b16", "b16", v, Imm(0x8000, "b16"))
