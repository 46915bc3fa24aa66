"""Mutants: a program with one synchronising instruction deleted or weakened, or one layout field flipped.

A machine that acquits a mutant would acquit the bug.  ``mutants`` makes them from PTX (and the tensor maps of its
launch), ``mutate`` runs them.  Each carries the hazards that one would expect, and the public bug reports that it
stands for.  Fields that the ISA ignores (LBO of a K-major swizzled operand) are not mutated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from tilemma.launch import Launch, TensorMapArgument
from tilemma.machine.arguments import TensorMap
from tilemma.machine.isa import descriptors
from tilemma.machine.parser import parse
from tilemma.machine.syntax import Address, Entry, Immediate, Instruction, Register

# Mistakes that the machine cannot see are found by comparison with the sound program's results (`tilemma check
# --expect`).
WRONG = "wrong-result"
_ORDER = frozenset(
    {
        "race", "read-before-arrival", "overwrite-in-flight", "overwrite-in-flight-warps",
        "overwrite-in-flight-store", "uninitialised-shared", "missing-proxy-fence",
    }
)  # fmt: skip
_HANG = frozenset({"deadlock", "step-limit"})
_PHASE = _ORDER | _HANG | {"mbarrier-arrivals", "mbarrier-bytes", "mbarrier-before-init", "exit-with-pending"}
_LAYOUT = frozenset(
    {"operand-layout", "swizzle-mismatch", "inadmissible-descriptor", "out-of-bounds", "misaligned", "race", WRONG}
) | (_ORDER - {"missing-proxy-fence"})

_CLUSTER = _ORDER | _HANG | {"barrier-count", "exit-before-cluster"}
_LOADS = ("ldmatrix", "ld.shared")
# Operations that one thread executes for all.
_BY_ONE = ("mbarrier.arrive", "mbarrier.init", "cp.async.bulk.tensor")
_BY_MANY = frozenset(
    {"mbarrier-arrivals", "mbarrier-bytes", "mbarrier-reinit", "copy-by-many", "uninitialised-register"}
)
_INIT = frozenset({"mbarrier-init-not-visible", "mbarrier-init-not-visible-cta"})
_PROXY = _INIT | {"missing-proxy-fence", "missing-proxy-fence-cp-async", "missing-proxy-fence-read"}

_DROPPED_BARRIER = (
    "tile-ai/tilelang#2556",
    "tile-ai/tilelang#2612",
    "tile-ai/tilelang#2698",
    "tile-ai/tilelang#2699",
)
_SWIZZLE = ("NVIDIA/cutlass#3197", "tile-ai/tilelang#2609", "tile-ai/tilelang#2714")
_INCOMPATIBLE = ("tile-ai/tilelang#2642",)
_REUSED = ("triton-lang/triton#8554",)


@dataclass(frozen=True)
class Mutant:
    """One changed program.

    ``key`` names it independently of line numbers: its kind and the how-manieth of that kind it is.
    """

    key: str
    what: str
    line: int
    ptx: str
    expected: frozenset[str]
    reports: tuple[str, ...] = ()
    launch: Any = None
    args: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Rule:
    """The hazards expected after deleting an instruction of one kind."""

    prefix: str
    kind: str
    expected: frozenset[str]
    reports: tuple[str, ...] = ()


_DELETE = (
    Rule("bar.warp.sync", "warp barrier", _ORDER | {"race-lanes", "race-tensor-map-copy"}),
    Rule("barrier.cluster.arrive", "cluster barrier arrive", _CLUSTER),
    Rule(
        "barrier.cluster.wait",
        "cluster barrier wait",
        _CLUSTER | {"mbarrier-before-init"},
    ),
    Rule("bar.sync", "barrier", _PHASE | {"register-in-flight"}, _DROPPED_BARRIER),
    Rule("barrier.sync", "barrier", _PHASE | {"register-in-flight"}, _DROPPED_BARRIER),
    Rule("bar.arrive", "barrier arrival", _PHASE | {"barrier-count"}, _DROPPED_BARRIER),
    Rule("fence.proxy", "proxy fence", _PROXY),
    Rule("fence.mbarrier_init", "mbarrier init fence", _INIT | {"mbarrier-before-init"}),
    Rule("wgmma.fence", "wgmma fence", frozenset({"missing-wgmma-fence"})),
    Rule("wgmma.commit_group", "wgmma commit", _PHASE | {"register-in-flight"}, _REUSED),
    Rule("wgmma.wait_group", "wgmma wait", _PHASE | {"register-in-flight"}, _REUSED),
    Rule("cp.async.bulk.commit_group", "bulk commit", _ORDER | {"exit-with-pending"}),
    Rule("cp.async.bulk.wait_group", "bulk wait", _ORDER | {"exit-with-pending"}),
    Rule("cp.async.commit_group", "cp.async commit", _ORDER | {"exit-with-pending"}),
    Rule("cp.async.wait_group", "cp.async wait", _ORDER | {"exit-with-pending"}),
    Rule("cp.async.wait_all", "cp.async wait", _ORDER | {"exit-with-pending"}),
    Rule("cp.async.mbarrier.arrive", "cp.async arrival", _PHASE),
    Rule("mbarrier.init", "mbarrier init", frozenset({"mbarrier-before-init"})),
    Rule("mbarrier.arrive", "mbarrier arrival", _PHASE),
    Rule("mbarrier.expect_tx", "expected bytes", _PHASE),
)  # fmt: skip


def mutants(ptx: str, launch: Any, args: Mapping[str, Any]) -> list[Mutant]:
    """All mutants of the entry that ``launch`` starts, in the order of the text."""
    module = parse(ptx)
    name = launch.entry if isinstance(launch, Launch) else launch.get("entry")
    entry = module.entries[name] if name else next(iter(module.entries.values()))
    made = _Maker(ptx, entry)
    made.deletions()
    made.weaker_waits()
    made.loops()
    made.phases()
    made.counts()
    made.participants()
    made.descriptors()
    made.exchanges()
    return made.found + _tensor_maps(ptx, launch, args)


class _Maker:
    """Collects the mutants of one entry."""

    def __init__(self, ptx: str, entry: Entry) -> None:
        self.ptx, self.entry = ptx, entry
        self.found: list[Mutant] = []
        self.counted: dict[str, int] = {}
        self.writers: dict[str, list[Instruction]] = {}
        for ins in entry.instructions:
            target = ins.operands[0] if ins.operands else None
            if isinstance(target, Register):
                self.writers.setdefault(target.name, []).append(ins)

    def add(
        self, kind: str, ins: Instruction, text: str, what: str, expected: Iterable[str], reports: Any = ()
    ) -> None:
        number = self.counted[kind] = self.counted.get(kind, 0) + 1
        changed = self.ptx[: ins.start] + text + self.ptx[ins.end :]
        self.found.append(
            Mutant(
                f"{kind} {number}",
                f"{what}: {ins.text[:90]}",
                ins.line,
                changed,
                frozenset(expected),
                tuple(reports),
            )
        )

    def deletions(self) -> None:
        for ins in self.entry.instructions:
            rule = next((r for r in _DELETE if ins.opcode.startswith(r.prefix)), None)
            if rule is not None:
                self.add(f"no {rule.kind}", ins, "", "deleted", rule.expected, rule.reports)

    def weaker_waits(self) -> None:
        """Waits for all but n groups, with n one larger."""
        kinds = {
            "wgmma.wait_group": "wgmma",
            "cp.async.wait_group": "cp.async",
            "cp.async.bulk.wait_group": "bulk",
        }
        for ins in self.entry.instructions:
            kind = next((k for p, k in kinds.items() if ins.opcode.startswith(p)), None)
            if kind and isinstance(ins.operands[0], Immediate):
                n = ins.operands[0].value
                text = self.operand_text(ins, str(n), str(n + 1))
                reports = _REUSED if kind == "wgmma" else ()
                self.add(
                    f"weaker {kind} wait", ins, text, f"waits for all but {n + 1}",
                    _ORDER | {"register-in-flight", "exit-with-pending"}, reports,
                )  # fmt: skip

    def operand_text(self, ins: Instruction, old: str, new: str) -> str:
        """The instruction's text with its last occurrence of an operand changed."""
        text = self.ptx[ins.start : ins.end]
        at = text.rindex(old)
        return text[:at] + new + text[at + len(old) :]

    def loops(self) -> None:
        """A wait without its loop: the result of try_wait is not tested."""
        instructions = self.entry.instructions
        for a, b in pairwise(instructions):
            if a.opcode.startswith(("mbarrier.try_wait", "mbarrier.test_wait")) and b.opcode == "bra" and b.guard:
                self.add("no wait loop", b, "", "the wait is not repeated", _PHASE | {"register-in-flight"})

    def block(self, ins: Instruction, operand: str, code: str) -> str:
        """The instruction with one operand replaced by what ``code`` makes of it, in a scope of its own."""
        text = self.ptx[ins.start : ins.end]
        return f"{{ .reg .b32 %mutated; {code} {_swap_last(text, operand, '%mutated')} }}"

    def phases(self) -> None:
        for ins in self.entry.instructions:
            if not ins.opcode.startswith(("mbarrier.try_wait.parity", "mbarrier.test_wait.parity")):
                continue
            parity = ins.operands[2]
            if isinstance(parity, Immediate):
                text = self.operand_text(ins, str(parity.value), str(1 - parity.value))
            elif isinstance(parity, Register):
                text = self.block(ins, str(parity), f"xor.b32 %mutated, {parity}, 1;")
            else:
                continue
            self.add("flipped phase", ins, text, "waits for the other parity", _PHASE | {"register-in-flight"})

    def counts(self) -> None:
        """Byte counts and arrival counts, a little too small and too large."""
        for ins in self.entry.instructions:
            if "expect_tx" in ins.parts:
                self.count(ins, "bytes", 16)
            elif ins.opcode.startswith("mbarrier.init"):
                self.count(ins, "arrivals", 1)

    def count(self, ins: Instruction, kind: str, step: int) -> None:
        operand = ins.operands[-1]
        for word, sign in (("fewer", -1), ("more", 1)):
            if isinstance(operand, Immediate):
                value = operand.value + sign * step
                if value < 1:
                    continue
                text = self.operand_text(ins, str(operand.value), str(value))
            elif isinstance(operand, Register):
                text = self.block(ins, str(operand), f"add.s32 %mutated, {operand}, {sign * step};")
            else:
                continue
            self.add(f"{word} {kind}", ins, text, f"{word} {kind} by {step}", _PHASE | {"register-in-flight"})

    def participants(self) -> None:
        """The participants: threads of a barrier, the one thread that acts for all, CTAs of a cluster."""
        for ins in self.entry.instructions:
            if ins.opcode.startswith(("bar.sync", "bar.arrive")) and len(ins.operands) > 1:
                self.fewer_threads(ins)
            if ins.guard is not None and ins.opcode.startswith(_BY_ONE):
                text = self.ptx[ins.start : ins.end]
                text = text[text.index(ins.opcode.split(".")[0]) :]
                self.add("no guard", ins, text, "by all threads", _PHASE | _BY_MANY)
            if ins.opcode.startswith("mapa") and isinstance(ins.operands[2], Register):
                rank = str(ins.operands[2])
                text = self.block(ins, rank, f"xor.b32 %mutated, {rank}, 1;")
                self.add("other rank", ins, text, "in another CTA of the cluster", _PHASE)
            mask = ins.operands[3] if "multicast::cluster" in ins.parts else None
            if isinstance(mask, Immediate):
                text = self.operand_text(ins, str(mask.value), "1")
                self.add("smaller multicast", ins, text, "for CTA 0 alone", _PHASE)

    def fewer_threads(self, ins: Instruction) -> None:
        threads = ins.operands[1]
        if isinstance(threads, Immediate) and threads.value > 32:
            text = self.operand_text(ins, str(threads.value), str(threads.value - 32))
            self.add("fewer threads", ins, text, "a warp less", _PHASE | {"barrier-count", "register-in-flight"})

    def descriptors(self) -> None:
        """Swizzle, SBO and, where it counts, LBO of the constants that wgmma descriptors are made of."""
        seen: set[tuple[int, str]] = set()
        for ins in self.entry.instructions:
            if not ins.opcode.startswith("wgmma.mma_async"):
                continue
            trans = [x.value for x in ins.operands[6:] if isinstance(x, Immediate)]
            for position in (1, 2):
                operand = ins.operands[position]
                if not isinstance(operand, Register):
                    continue
                turned = bool(trans) and bool(trans[0 if position == 1 and len(trans) == 2 else -1])
                parts = {i: value for i in self.slice(operand) if (value := _fields_of(i)) is not None}
                rows = 64 if position == 1 else _columns(ins)
                for source, name, value in _changed_fields(parts, rows if turned else 0):
                    if (source.line, name) not in seen:
                        seen.add((source.line, name))
                        self.descriptor(source, parts[source], value, name)

    def slice(self, register: Register) -> list[Instruction]:
        """Instructions that the value of a register is made by."""
        out: list[Instruction] = []
        work, done = [register.name], set()
        while work:
            name = work.pop()
            if name in done:
                continue
            done.add(name)
            for ins in self.writers.get(name, ()):
                out.append(ins)
                if not ins.opcode.startswith("ld"):
                    work += [x.name for x in ins.operands[1:] if isinstance(x, Register)]
        return sorted(out, key=lambda i: i.start)

    def descriptor(self, ins: Instruction, old: int, new: int, name: str) -> None:
        """One constant of a descriptor with one field changed."""
        spelled = _spelling(self.ptx[ins.start : ins.end], old)
        if spelled is not None:
            reports = _SWIZZLE if name == "swizzle" else _INCOMPATIBLE
            text = self.operand_text(ins, spelled, str(new))
            self.add(f"other {name}", ins, text, f"descriptor with {name} changed", _LAYOUT, reports)

    def exchanges(self) -> None:
        """XORs that exchange 16-byte units of shared memory on the way to an address, left out."""
        seen: set[int] = set()
        for ins in self.entry.instructions:
            if not ins.opcode.startswith((*_LOADS, "cp.async.ca", "cp.async.cg", "stmatrix", "st.shared")):
                continue
            place = ins.operands[1] if ins.opcode.startswith(_LOADS) else ins.operands[0]
            if not isinstance(place, Address) or not isinstance(place.base, Register):
                continue
            for source in self.slice(place.base):
                if source.opcode == "xor.b32" and source.start not in seen and source.guard is None:
                    seen.add(source.start)
                    to, a = source.operands[0], source.operands[1]
                    text = f"mov.b32 {to}, {a if isinstance(a, Register) else getattr(a, 'value', 0)};"
                    self.add("no exchange", source, text, "without the swizzle", _LAYOUT, _SWIZZLE)


# Bits of a descriptor's fields (PTX ISA, "Matrix Descriptor Format").
_FIELDS = {"swizzle": 3 << 62, "SBO": 0x3FFF << 32, "LBO": 0x3FFF << 16}


def _fields_of(ins: Instruction) -> int | None:
    """The constant that an instruction puts into a descriptor, where it has bits above the address."""
    constant = next((x for x in ins.operands[1:] if isinstance(x, Immediate)), None)
    if constant is None or not ins.opcode.startswith(("or.b", "mov.")):
        return None
    value = constant.value & ((1 << 64) - 1)
    return value if value >> 16 else None


def _columns(ins: Instruction) -> int:
    """N of a wgmma."""
    return next(int(match[1]) for part in ins.parts if (match := re.fullmatch(r"m64n(\d+)k\d+", part)))


def _changed_fields(parts: Mapping[Instruction, int], turned: int) -> Iterable[tuple[Instruction, str, int]]:
    """(instruction, field, its constant with another value of the field) for the fields of one descriptor.

    LBO counts for operands without swizzle, and for MN-major ones of so many (``turned``) 16-bit rows or columns
    that they are wider than the swizzle.
    """
    whole = 0
    for value in parts.values():
        whole |= value
    fields = descriptors.decode(whole)
    modes = (0, 128, 64, 32)
    changes = {"swizzle": replace(fields, swizzle=modes[(modes.index(fields.swizzle) + 1) % 4])}
    if fields.sbo:
        changes["SBO"] = replace(fields, sbo=fields.sbo * 2 % (1 << 18))
    if fields.lbo and (not fields.swizzle or 2 * turned > fields.swizzle):
        changes["LBO"] = replace(fields, lbo=fields.lbo * 2 % (1 << 18))
    for name, changed in changes.items():
        mask = _FIELDS[name]
        # No swizzle is no bits: they would stand beside SBO.
        where = mask if whole & mask else _FIELDS["SBO"]
        for ins, value in parts.items():
            if value & where:
                yield ins, name, value & ~mask | descriptors.encode(changed) & mask


def _swap_last(text: str, old: str, new: str) -> str:
    at = text.rindex(old)
    return text[:at] + new + text[at + len(old) :]


def _spelling(text: str, value: int) -> str | None:
    """How a constant is written in an instruction's text."""
    signed = value - (1 << 64) if value >> 63 else value
    low = text.lower()
    for shown in (str(value), str(signed), f"{value:#x}", f"{value:#018x}"):
        at = low.find(shown)
        if at >= 0:
            return text[at : at + len(shown)]
    return None


def _tensor_maps(ptx: str, launch: Any, args: Mapping[str, Any]) -> list[Mutant]:
    """Each tensor map without its swizzle."""
    out: list[Mutant] = []

    def add(name: str, **changed: Any) -> None:
        what = f"tensor map of {name} without swizzle"
        out.append(Mutant(f"other map swizzle {len(out) + 1}", what, 0, ptx, _LAYOUT, _SWIZZLE, **changed))

    if isinstance(launch, Launch):
        for i, argument in enumerate(launch.arguments):
            if isinstance(argument, TensorMapArgument) and argument.swizzle:
                changed = replace(argument, swizzle=0)
                arguments = (*launch.arguments[:i], changed, *launch.arguments[i + 1 :])
                add(argument.array, launch=replace(launch, arguments=arguments))
        return out
    for name, value in args.items():
        if isinstance(value, TensorMap) and value.swizzle:
            add(name, args={**args, name: replace(value, swizzle=0)})
    return out
