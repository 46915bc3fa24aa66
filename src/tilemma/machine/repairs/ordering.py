"""Repairs of order: barriers, waits for groups of copies and of wgmma, fences; descriptors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from operator import eq

from tilemma.machine.repairs.listing import Edit, Flow, Position, Repair, after, before, insertion, unique
from tilemma.machine.repairs.problem import Problem, immediate
from tilemma.machine.syntax import Address, Immediate, Instruction, Register

CTA, WARP = "bar.sync 0;", "bar.warp.sync 0xffffffff;"
_CLUSTER = (
    "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;",
    "barrier.cluster.arrive; barrier.cluster.wait;",
)
_PROXY = ("fence.proxy.async.shared::cta;", "fence.proxy.async;")
_PROXY_GLOBAL = ("fence.proxy.async.global;",)
_WAITS = {
    "cp.async": "cp.async.wait_group",
    "bulk": "cp.async.bulk.wait_group",
    "wgmma": "wgmma.wait_group.sync.aligned",
}
_COMMITS = {
    "cp.async": "cp.async.commit_group;", "wgmma": "wgmma.commit_group.sync.aligned;",
    "bulk": "cp.async.bulk.commit_group;",
}  # fmt: skip


def _named(p: Problem) -> list[str]:
    """The other barriers that the program has, as it writes them, without guards."""
    found: dict[str, None] = {}
    for ins in p.listing:
        if ins.opcode.startswith(("bar.sync", "barrier.sync", "bar.warp.sync")):
            found[_unguarded(p, ins)] = None
    return [t for t in found if t not in (CTA, WARP)]


def barriers(p: Problem) -> Iterator[Repair]:
    """A barrier of the warp, the CTA, or of the threads that another barrier of the program has."""
    asked = str(p.hazard.facts.get("barrier", ""))
    texts = [WARP, CTA] if asked == WARP else [CTA, WARP]
    places = p.places()
    for place in places[:4]:
        for text in texts:
            yield insertion(place, text)
    for text in texts:
        for place in places[4:24]:
            yield insertion(place, text)
    for text in _named(p):
        for place in places[:6]:
            yield insertion(place, text)


def cluster_barriers(p: Problem) -> Iterator[Repair]:
    """A cluster barrier, or the missing half of one."""
    waits, arrives = p.having("barrier.cluster.wait"), p.having("barrier.cluster.arrive")
    if not waits and not arrives and "cluster" not in p.hazard.render():
        return
    ends = [before(ins) for ins in p.listing if ins.parts[0] in ("ret", "exit")]
    for wait in waits:
        aligned = ".aligned" if "aligned" in wait.parts else ""
        for place in unique([before(wait), *p.places()[:6]]):
            yield insertion(place, f"barrier.cluster.arrive{aligned};")
    for arrive in arrives:
        aligned = ".aligned" if "aligned" in arrive.parts else ""
        for place in unique([after(arrive), *p.places()[:6], *ends]):
            yield insertion(place, f"barrier.cluster.wait{aligned};")
    for text in _CLUSTER:
        for place in unique([*p.places()[:10], *ends]):
            yield insertion(place, text)


def named_barriers(p: Problem) -> Iterator[Repair]:
    """Another count of threads at a barrier; the missing arrival at one."""
    named = [
        ins
        for ins in p.having("bar.sync", "bar.arrive", "barrier.sync", "barrier.arrive")
        if len(ins.operands) > 1
    ]
    usual = Counter(immediate(ins, 1) for ins in named)
    counts = {*usual, p.threads}
    # First a count that few other barriers have.
    for ins in sorted(named, key=lambda ins: usual[immediate(ins, 1)]):
        old, numbers = immediate(ins, 1), set(counts)
        if old is None:
            continue
        numbers |= {old + 32, old - 32}
        for new in sorted((n for n in numbers if n and n != old), key=lambda n: abs(n - old)):
            yield replaced(
                p, ins, str(old), str(new), f"give `{ins.opcode}` in PTX line {ins.line} the count {new}"
            )
    for ins in named:
        text = p.listing.source(ins)
        operands = text[text.index(ins.opcode) + len(ins.opcode) :].strip()
        flow = p.listing.flow(ins)
        starts = [before(flow.instructions[i]) for i in flow.starts]
        ends = [flow.block_end(i) for i in flow.starts]
        for verb in ("bar.arrive", "bar.sync"):
            for place in unique([*ends, *starts]):
                yield insertion(place, f"{verb} {operands}")


def turns(p: Problem) -> Iterator[Repair]:
    """The missing arrival at a named barrier, in places between the same barriers as another arrival there; then
    where one of the two is the same."""
    known: dict[str, set[tuple[str, str]]] = {}
    gaps: list[tuple[Flow, int, int, tuple[str, str]]] = []
    for flow in p.listing.flows:
        all_ = [i for i, ins in enumerate(flow.instructions) if ins.parts[0] in ("bar", "barrier")]
        texts = ["", *(_unguarded(p, flow.instructions[i]) for i in all_), ""]
        for i, around in zip(all_, zip(texts, texts[2:], strict=False), strict=True):
            if "arrive" in flow.instructions[i].parts and len(flow.instructions[i].operands) > 1:
                known.setdefault(_unguarded(p, flow.instructions[i]), set()).add(around)
        edges = [-1, *all_, len(flow.instructions) - 1]
        gaps += [(flow, a, b, c) for (a, b), c in zip(pairwise(edges), pairwise(texts), strict=True)]
    for common in (2, 1):
        for text, contexts in known.items():
            for flow, a, b, between in gaps:
                if max(sum(map(eq, between, c)) for c in contexts) == common:
                    inside = [i for i in flow.starts if a < i <= b]
                    ends = [flow.block_end(i) for i in (a, *inside) if i >= 0 and flow.block(i)[1] < b]
                    starts = [before(flow.instructions[i]) for i in (*inside, b)]
                    for place in unique([*ends, *starts]):
                        yield insertion(place, text)


def _unguarded(p: Problem, ins: Instruction) -> str:
    """An instruction as it is written, without its guard."""
    return " ".join(p.listing.source(ins)[len(p.guard(ins)) :].split())


def replaced(p: Problem, ins: Instruction, old: str, new: str, words: str) -> Repair:
    """The last occurrence of an operand of ``ins``, replaced."""
    source = p.listing.source(ins)
    at = ins.start + source.rindex(old)
    return Repair(words, (Edit(at, at + len(old), new),))


def ranks(p: Problem) -> Iterator[Repair]:
    """`mapa` to the rank of another `mapa`."""
    mapped = p.having("mapa")
    for ins in mapped:
        for rank in dict.fromkeys(str(other.operands[2]) for other in mapped):
            if rank != str(ins.operands[2]):
                yield replaced(
                    p, ins, str(ins.operands[2]), rank, f"map the address of PTX line {ins.line} to {rank}"
                )


def stricter_waits(p: Problem) -> Iterator[Repair]:
    """Waits that leave fewer groups pending."""
    for ins in p.having(*_WAITS.values()):
        pending = immediate(ins, 0) or 0
        for n in range(pending - 1, -1, -1):
            yield replaced(p, ins, str(pending), str(n), f"wait for all but {n} groups in PTX line {ins.line}")


def _family(ins: Instruction | None) -> str | None:
    """The kind of groups that an instruction belongs to."""
    if ins is None:
        return None
    if ins.opcode.startswith("wgmma"):
        return "wgmma"
    if ins.opcode.startswith(("cp.async.bulk", "cp.reduce.async.bulk")):
        return "bulk"
    return "cp.async" if ins.opcode.startswith("cp.async") else None


def _families(p: Problem) -> list[str]:
    """Kinds of groups in the program, those of the hazard's instructions first."""
    near = [f for f in (_family(p.first), _family(p.second)) if f]
    present = [f for ins in p.listing if (f := _family(ins))]
    return list(dict.fromkeys([*near, *present]))


def _issues(p: Problem, family: str) -> list[Instruction]:
    """The last instruction of each run of copies or products."""
    found = []
    for flow in p.listing.flows:
        for i, ins in enumerate(flow.instructions):
            if _family(ins) != family or any(
                x in ins.parts for x in ("commit_group", "wait_group", "wait_all", "fence")
            ):
                continue
            rest = flow.instructions[i + 1 : flow.block(i)[1] + 1]
            same = [r for r in rest if _family(r) == family]
            if (
                not same
                or "commit_group" in same[0].parts
                or "wait_group" in same[0].parts
                or "fence" in same[0].parts
            ):
                found.append(ins)
    return sorted(found, key=lambda ins: abs(ins.line - (p.first or p.second).line))


def commits(p: Problem) -> Iterator[Repair]:
    """The missing end of a group."""
    for family in _families(p):
        text = _COMMITS[family]
        for ins in _issues(p, family)[:8]:
            guard = p.guard(ins) if family == "bulk" else ""
            flow = p.listing.flow(ins)
            for place in unique([after(ins), flow.block_end(flow.index[ins])]):
                yield insertion(place, guard + text)
        for wait in p.having(_WAITS[family])[:6]:
            flow = p.listing.flow(wait)
            start = flow.instructions[flow.block(flow.index[wait])[0]]
            for place in unique([before(wait), before(start)]):
                yield insertion(place, p.guard(wait) + text)


def waits(p: Problem) -> Iterator[Repair]:
    """A wait for the groups of a family, alone before a barrier that follows, or with one."""
    flow = p.flow
    around = [ins for ins in p.having("bar.sync", "barrier.sync", "bar.warp.sync") if ins in flow.index]
    end = [before(ins) for ins in p.listing if ins.parts[0] in ("ret", "exit")]
    for family in _families(p):
        known = {immediate(ins, 0) for ins in p.having(_WAITS[family])} - {None}
        numbers = sorted({0, *(n for n in known if n is not None)}, reverse=True)
        guard = p.guard(p.first if _family(p.first) == "bulk" else p.second) if family == "bulk" else ""
        places = unique([*p.places()[:6], *(before(b) for b in around[:6])])
        if p.hazard.code == "exit-with-pending":
            places = unique([*(after(ins) for ins in p.having(_COMMITS[family][:-1])), *end, *places])
        for n in numbers:
            for place in places:
                yield insertion(place, f"{guard}{_WAITS[family]} {n};")
        for place in places[:4]:
            for barrier in (CTA, WARP):
                yield insertion(place, f"{guard}{_WAITS[family]} 0; {barrier}")


def proxy_fences(p: Problem) -> Iterator[Repair]:
    """A fence between the generic and the async proxy, or of the init of mbarriers."""
    if p.hazard.code.startswith("mbarrier-init") and p.first is not None:
        yield insertion(after(p.first), p.guard(p.first) + "fence.mbarrier_init.release.cluster;")
    flow = p.flow
    around = [before(ins) for ins in p.having("bar.sync", "barrier.sync", "bar.warp.sync") if ins in flow.index]
    writer: list[Position] = []
    if p.first is not None:
        own = p.listing.flow(p.first)
        writer = [own.block_end(own.index[p.first]), after(p.first)]
    for text in _PROXY_GLOBAL if p.hazard.code.endswith("-global") else _PROXY:
        for place in unique([*around[:4], *writer, *p.places()[:6], *around[4:10]]):
            yield insertion(place, text)
    for ins in p.having("mbarrier.init"):
        yield insertion(after(ins), p.guard(ins) + "fence.mbarrier_init.release.cluster;")


def tensor_map_fences(p: Problem) -> Iterator[Repair]:
    """A fence of a changed tensor map, where it is copied to global memory or before its use."""
    fence = "fence.proxy.tensormap::generic.acquire.gpu"
    for ins in p.having("tensormap.cp_fenceproxy"):
        source = p.listing.source(ins)
        address = source[source.index("[") : source.index("]") + 1]
        yield insertion(after(ins), f"{p.guard(ins)}{fence} {address}, 128;")
    for operand in p.second.operands:
        if isinstance(operand, Address) and operand.coordinates is not None and isinstance(operand.base, Register):
            yield insertion(
                before(p.second), f"{p.guard(p.second)}{fence} [{operand.base}+{operand.offset}], 128;"
            )


def wgmma_fences(p: Problem) -> Iterator[Repair]:
    """`wgmma.fence` before products."""
    for ins in p.having("wgmma.mma_async", "wgmma.mma_async.sp")[:6]:
        flow = p.listing.flow(ins)
        start = flow.instructions[flow.block(flow.index[ins])[0]]
        for place in unique([before(ins), before(start)]):
            yield insertion(place, "wgmma.fence.sync.aligned;")


def descriptors(p: Problem) -> Iterator[Repair]:
    """Constants of matrix descriptors with another swizzle or stride (PTX ISA, "Matrix Descriptor Format")."""
    if not any(ins.opcode.startswith("wgmma.mma_async") for ins in p.listing):
        return
    constants = sorted(_descriptor_constants(p), key=lambda c: abs(c[0].line - p.second.line))
    # The steps of one operand have one constant.
    known = dict.fromkeys(value for _, _, value in constants)
    for ins, written, value in constants:
        spelled = _spelling(p.listing.source(ins), written)
        stride = value >> 32 & 0x3FFF
        changed = [value & ~(3 << 62) | mode << 62 for mode in range(4)]
        strides = (stride // 2, stride * 2)
        changed += [value & ~(0x3FFF << 32) | s << 32 for s in strides if 0 < s < 1 << 14]
        for new in dict.fromkeys([*list(known)[:6], *changed]):
            if spelled is not None and new != value:
                words = f"make the descriptor constant of PTX line {ins.line} {new:#x}"
                yield replaced(p, ins, spelled, str(new - (1 << 64) if new >> 63 else new), words)


def _descriptor_constants(p: Problem) -> Iterator[tuple[Instruction, int, int]]:
    """Instructions with a constant that may be of a descriptor: as written, and its 64 bits."""
    for ins in p.listing:
        if ins.parts[-1] not in ("b64", "s64", "u64") or ins.parts[0] in ("ld", "st", "mul", "mad"):
            continue
        for operand in ins.operands[1:]:
            value = operand.value & ((1 << 64) - 1) if isinstance(operand, Immediate) else 0
            if value >> 32 and isinstance(operand, Immediate):
                yield ins, operand.value, value


def _spelling(text: str, value: int) -> str | None:
    """A constant as an instruction's text writes it."""
    unsigned = value & ((1 << 64) - 1)
    for word in re.findall(r"-?(?:0[xX][0-9a-fA-F]+|\d+)", text):
        if int(word, 0) & ((1 << 64) - 1) == unsigned:
            return str(word)
    return None
