"""Control flow: branches, exit, trap and hints (PTX ISA, "Control Flow Instructions")."""

from __future__ import annotations

from typing import Any

from tilemma.machine.catalogue import OutOfBounds, Trap
from tilemma.machine.decode import Decoder, instruction
from tilemma.machine.isa.copying import PRIMARY, SECONDARY
from tilemma.machine.native.blocks import AccessBlock, PlainAccess, block
from tilemma.machine.syntax import Address, Symbol

# Bytes of a line of L2, the only size that the instructions about lines take.
_LINE = 128


@instruction("bra")
def bra(d: Decoder) -> None:
    d.only("uni")
    d.count(1)
    label = d.operands[0]
    if not isinstance(label, Symbol) or label.name not in d.program.entry.labels:
        d.bad("a branch needs a label")
    d.kind, d.target = 2, d.program.entry.labels[label.name]


@instruction("brx.idx")
def brx(d: Decoder) -> None:
    """An indirect branch whose index matched none of its list."""
    ins = d.ins

    def run(f: Any, m: Any) -> None:
        lanes = f.lanes if m is None else m.nonzero()[0]
        f.w.report(
            OutOfBounds,
            ins,
            lanes=lanes,
            access="use of",
            space="an index of `brx.idx`",
            what="which its list of labels does not have",
            fatal=True,
        )

    d.visible(run)


@instruction("exit", "ret")
def leave(d: Decoder) -> None:
    d.only("uni")
    d.count(0)
    d.kind = 3


@instruction("trap", "brkpt")
def trap(d: Decoder) -> None:
    ins = d.ins

    def run(f: Any, m: Any) -> None:
        lanes = f.lanes if m is None else m.nonzero()[0]
        machine = f.w.cta.machine
        said = machine.last_words.get(f.w)
        notes = [] if said is None else [f"the warp has last printed: {said.strip()}"]
        f.w.report(Trap, ins, lanes=lanes, notes=notes, opcode=ins.opcode, fatal=True)

    d.visible(run)


@instruction(
    "nanosleep", "pmevent", "prefetch", "prefetchu", "applypriority", "griddepcontrol",
    "cp.async.bulk.prefetch",
)  # fmt: skip
def hint(d: Decoder) -> None:
    """Instructions without an effect on results; other warps may run at this point."""
    operands = d.without_policy()
    if operands and isinstance(operands[0], Address):
        d.address(operands[0])
        rank = next((int(m[0]) for m in d.mods if m in ("1d", "2d", "3d", "4d", "5d")), 0)
        if rank:
            d.coordinates(operands[0], rank)
    if d.parts[0] == "applypriority" and d.immediate(operands[1]) != _LINE:
        d.bad(f"the size must be {_LINE}")
    elif d.parts[0] == "nanosleep" or (d.parts[0] == "cp" and "tensor" not in d.mods):
        d.src(operands[-1], "u32")
    d.plain = PlainAccess("NOTHING", AccessBlock(*block([])))
    d.visible(lambda f, m: None)


@instruction("createpolicy")
def createpolicy(d: Decoder) -> None:
    # A cache policy steers caches only; the register gets a value so that its use is no uninitialised read.
    o = d.dst(d.operands[0], "u64")
    priorities = [m for m in d.mods if m.startswith("L2::evict")]
    first, others = (priorities[:1], priorities[1:]) if "cvt" not in d.mods else (["L2::evict_last"], [])
    if not set(first) <= set(PRIMARY) or not set(others) <= set(SECONDARY) or not first or len(others) > 1:
        d.refuse(
            f"its priorities are one of {', '.join('.' + x for x in PRIMARY)}, then none or one of "
            f"{', '.join('.' + x for x in SECONDARY)}"
        )
    for size in d.operands[2:] if "range" in d.mods else ():
        d.src(size, "u32")
    d.alu(lambda w, m: w.v[6][o].fill(0x12F0000000000000))
