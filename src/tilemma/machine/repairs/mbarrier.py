"""Repairs of mbarriers: parities, counts, expected bytes, loops around waits, missing inits and arrivals."""

from __future__ import annotations

from collections.abc import Iterator

from tilemma.machine.repairs.listing import Edit, Position, Repair, after, before, insertion, unique
from tilemma.machine.repairs.ordering import CTA, replaced
from tilemma.machine.repairs.problem import Problem, immediate
from tilemma.machine.syntax import Address, Immediate, Instruction, Operand, Register, Symbol

_WAITS = ("mbarrier.try_wait", "mbarrier.test_wait")
_PARITY = ("mbarrier.try_wait.parity", "mbarrier.test_wait.parity")
_EXPECT = ("mbarrier.arrive.expect_tx.shared::cta.b64 _,", "mbarrier.expect_tx.relaxed.cta.shared::cta.b64")
_ONE = (
    "{{ .reg .pred %fix_one; .reg .b32 %fix_thread; mov.u32 %fix_thread, %tid.x; "
    "setp.eq.u32 %fix_one, %fix_thread, 0; @%fix_one {} }}"
)


def _scoped(p: Problem, ins: Instruction, operand: Register, code: str, words: str) -> Repair:
    """``ins`` with its last ``operand`` replaced by the result of ``code``, in a scope of its own."""
    source = p.listing.source(ins)
    at = source.rindex(str(operand))
    text = source[:at] + "%fixed" + source[at + len(str(operand)) :]
    return Repair(words, (Edit(ins.start, ins.end, f"{{ .reg .b32 %fixed; {code} {text} }}"),))


def parities(p: Problem) -> Iterator[Repair]:
    """Waits for the other parity."""
    for ins in p.having(*_PARITY):
        parity = ins.operands[2]
        words = f"wait for the other parity in PTX line {ins.line}"
        if isinstance(parity, Immediate):
            yield replaced(p, ins, str(parity.value), str(1 - parity.value), words)
        elif isinstance(parity, Register):
            yield _scoped(p, ins, parity, f"xor.b32 %fixed, {parity}, 1;", words)


def _changed(p: Problem, ins: Instruction, steps: list[int], what: str) -> Iterator[Repair]:
    """The last operand of ``ins`` plus each of ``steps``."""
    operand = ins.operands[-1]
    for step in dict.fromkeys(s for s in steps if s):
        more = f"{abs(step)} {'more' if step > 0 else 'fewer'} {what} in PTX line {ins.line}"
        if isinstance(operand, Immediate):
            if operand.value + step >= 1:
                yield replaced(p, ins, str(operand.value), str(operand.value + step), f"expect {more}")
        elif isinstance(operand, Register):
            yield _scoped(p, ins, operand, f"add.s32 %fixed, {operand}, {step};", f"expect {more}")


def counts(p: Problem) -> Iterator[Repair]:
    """Other counts of arrivals, first at the init that the hazard names."""
    named = {p.hazard.facts.get("init_line"), p.hazard.facts.get("other_line")}
    inits = sorted(p.having("mbarrier.init"), key=lambda i: i.line not in named)
    missing = p.numbers("arrivals")
    sizes = [n for n in missing if n] if p.hazard.code == "deadlock" else []
    for ins in inits:
        value = immediate(ins, -1)
        others = [n - value for n in (p.threads, p.threads // 32) if value is not None]
        signs = [-1, 1] if p.hazard.code == "deadlock" else [1, -1]
        yield from _changed(p, ins, [*(-n for n in sizes), *signs, *others], "arrivals")


def bytes_expected(p: Problem) -> Iterator[Repair]:
    """Other counts of bytes: by those that the hazard finds missing or in excess."""
    named = p.numbers("bytes")
    for ins in p.having("mbarrier.arrive.expect_tx", "mbarrier.expect_tx"):
        if "expect_tx" in ins.parts:
            yield from _changed(p, ins, [*(s * n for n in named for s in (-1, 1))], "bytes")
    for ins in p.having("mbarrier.arrive.expect_tx", "mbarrier.expect_tx"):
        yield from _changed(p, ins, [16, -16], "bytes")


def loops(p: Problem) -> Iterator[Repair]:
    """A loop around a try_wait whose result is never read."""
    for ins in p.having(*_WAITS):
        flow = p.listing.flow(ins)
        done = ins.operands[0]
        follow = flow.instructions[flow.index[ins] + 1 : flow.index[ins] + 2]
        looped = any(f.parts[0] == "bra" and f.guard and f.guard.register == done for f in follow)
        if not looped and isinstance(done, Register) and ins.guard is None:
            text = f"{{ FIX_WAIT: {p.listing.source(ins)} @!{done} bra FIX_WAIT; }}"
            words = f"repeat the wait of PTX line {ins.line} until its predicate {done} is true"
            yield Repair(words, (Edit(ins.start, ins.end, text),))


def _address(p: Problem, ins: Instruction | None) -> str | None:
    """The mbarrier that an instruction names: a variable and an offset where these are known, else its text."""
    if ins is None or "mbarrier" not in ins.opcode:
        return None
    found = [op for op in ins.operands if isinstance(op, Address)]
    if not found:
        return None
    # A copy names it last, an mbarrier instruction has no other address.
    name, offset = _variable(p, ins, found[-1].base), found[-1].offset
    if name is not None:
        return f"[{name[0]}+{name[1] + offset}]"
    source = p.listing.source(ins)
    return source[source.rindex("[") : source.rindex("]") + 1]


def _writes(p: Problem, ins: Instruction, operand: Operand) -> list[Instruction]:
    """The writes of a register of ``ins``; functions have registers of the same names."""
    return [e for e in p.listing.flow(ins).instructions if e.operands and e.operands[0] == operand]


def _variable(p: Problem, ins: Instruction, operand: Operand) -> tuple[str, int] | None:
    """The shared variable and the offset in a register of ``ins``, through `mov` and `add` of constants."""
    offset = 0
    for _ in range(8):
        if isinstance(operand, Symbol):
            return operand.name, offset
        writes = _writes(p, ins, operand)
        if not isinstance(operand, Register) or len(writes) != 1 or writes[0].guard is not None:
            return None
        made = writes[0]
        if made.parts[0] == "add" and isinstance(made.operands[2], Immediate):
            offset += made.operands[2].value
        elif made.parts[0] != "mov":
            return None
        operand = made.operands[1]
    return None


def _value(p: Problem, ins: Instruction, operand: Operand) -> int | None:
    """A constant, or that which the only write of a register of ``ins`` moves into it."""
    if isinstance(operand, Immediate):
        return int(operand.value)
    writes = _writes(p, ins, operand)
    return immediate(writes[0], 1) if len(writes) == 1 and writes[0].parts[0] == "mov" else None


def _definition(p: Problem, ins: Instruction) -> list[Instruction]:
    """The last write of the base register of an mbarrier's address before ``ins``."""
    bases = [op.base for op in ins.operands if isinstance(op, Address) and isinstance(op.base, Register)]
    flow = p.listing.flow(ins)
    writes = [e for e in flow.instructions if e.operands and e.operands[0] in bases[-1:]]
    before_it = [e for e in writes if flow.index[e] < flow.index[ins]]
    return before_it[-1:] or writes[:1]


def _neighbours(p: Problem, inits: list[Instruction]) -> list[str]:
    """The mbarriers beside those that are initialised, in the same array."""
    places = {_variable(p, ins, op.base) for ins in inits for op in ins.operands if isinstance(op, Address)} - {
        None
    }
    known = [place for place in places if place is not None]
    beside = [(name, offset + step) for name, offset in sorted(known) for step in (8, -8)]
    return [f"[{name}+{offset}]" for name, offset in beside if offset >= 0 and (name, offset) not in places]


def inits(p: Problem) -> Iterator[Repair]:
    """`mbarrier.init` by one thread, with a count of the program or of its block, then a barrier."""
    others = p.having("mbarrier.init")
    known = [n for ins in others if (n := _value(p, ins, ins.operands[-1])) is not None]
    known += [c for ins in p.listing if ins.parts[0] == "mov" and 0 < (c := immediate(ins, 1) or 0) <= 1024]
    numbers = list(dict.fromkeys([p.threads, 1, *known, p.threads // 32, 32]))[:8]
    yield from _named_only(p, others, numbers)
    for place in [after(o) for o in others[-1:]]:
        # Stages have the same counts: those of the others, as they stand there.
        counts = [
            str(x)
            for o in others
            if isinstance(x := o.operands[-1], Register) and o in p.listing.flow(others[-1]).index
        ]
        for beside in _neighbours(p, others):
            for count in dict.fromkeys([*counts, *(str(max(1, n)) for n in numbers[:3])]):
                yield insertion(place, f"mbarrier.init.shared::cta.b64 {beside}, {count};")
    users = [p.second, *p.having("mbarrier.")][:6]
    addresses: set[str] = set()
    for user in users:
        address = _address(p, user)
        if address is None or address in addresses:
            continue
        addresses.add(address)
        flow = p.listing.flow(user)
        made = _definition(p, user)
        start = flow.instructions[flow.block(flow.index[user])[0]]
        first = [before(b) for b in flow.instructions if b.opcode.startswith(("bar.sync", "barrier.sync"))][:2]
        places = unique(
            [*first, *(after(o) for o in others), *(after(m) for m in made), before(start), before(user)]
        )
        for place in places:
            for n in numbers:
                init = _ONE.format(f"mbarrier.init.shared::cta.b64 {address}, {max(1, n)};")
                yield insertion(place, init)
                yield insertion(place, f"{init} {CTA}")


def _named_only(p: Problem, inits: list[Instruction], counts: list[int]) -> Iterator[Repair]:
    """Inits of addresses that other instructions on mbarriers name, and no init: behind the address, by a thread;
    and of an address that stands beside another init and that nothing reads."""
    initialised = {op.base for ins in inits for op in ins.operands if isinstance(op, Address)}
    for user in p.having("mbarrier."):
        bases = [op.base for op in user.operands if isinstance(op, Address)]
        made = _definition(p, user)
        if bases and made and bases[-1] not in initialised:
            initialised.add(bases[-1])
            for n in counts[:3]:
                init = f"mbarrier.init.shared::cta.b64 {_address(p, user)}, {max(1, n)};"
                yield insertion(after(made[0]), _ONE.format(init))
    guards = {p.listing.flow(ins).block(p.listing.flow(ins).index[ins])[0]: p.guard(ins) for ins in inits}
    texts = [p.listing.source(ins).rsplit(",", 1)[1].strip(" ;") for ins in inits]
    for flow in p.listing.flows:
        for i, ins in enumerate(flow.instructions):
            if ins.parts[0] not in ("add", "mov") or ins.operands[0] not in p.unread:
                continue
            start = flow.block(i)[0]
            if start in guards or _variable(p, ins, ins.operands[0]):
                for count in dict.fromkeys([*texts[:2], str(p.threads), "1"]):
                    init = f"mbarrier.init.shared::cta.b64 [{ins.operands[0]}], {count};"
                    yield insertion(flow.block_end(i), guards.get(start, "") + init)


def copy_arrivals(p: Problem) -> Iterator[Repair]:
    """`cp.async.mbarrier.arrive` in front of the arrivals that follow a cp.async: as arrivals that the count
    leaves out, then as ones that it has."""
    copies = [p.first, *p.having("cp.async.ca", "cp.async.cg")]
    for copy in [c for c in copies if c is not None and c.opcode.startswith(("cp.async.ca", "cp.async.cg"))][:2]:
        flow = p.listing.flow(copy)
        following = flow.instructions[flow.index[copy] :]
        for ins in [i for i in following if i.opcode.startswith("mbarrier.arrive")][:2]:
            source = p.listing.source(ins)
            address = source[source.index("[") : source.index("]") + 1]
            for form in ("", ".noinc"):
                yield insertion(before(ins), f"cp.async.mbarrier.arrive{form}.shared::cta.b64 {address};")


def _copies(p: Problem) -> list[tuple[Instruction, str]]:
    """The copies that complete on an mbarrier, each with it."""
    copies = [ins for ins in p.listing if "mbarrier::complete_tx::bytes" in ins.parts]
    return [(copy, address) for copy in copies if (address := _address(p, copy)) is not None]


def tokens(p: Problem) -> Iterator[Repair]:
    """A missing arrival whose state a wait needs."""
    waits = [(w, a) for w in p.having(*_WAITS) if (a := _address(p, w))]
    for wait, address in waits:
        state, flow = wait.operands[-1], p.listing.flow(wait)
        if "parity" in wait.parts or not isinstance(state, Register):
            continue
        top = flow.block(flow.index[wait])[0]
        made = [after(m) for m in _definition(p, wait)]
        entries = [flow.block_end(x - 1) for x in (top, *(a for a, _ in flow.loops_of(flow.index[wait]))) if x]
        start = before(flow.instructions[top])
        for place in unique([*made, *entries, start, before(wait)]):
            yield insertion(place, f"mbarrier.arrive.shared::cta.b64 {state}, {address};")
    register = p.hazard.facts.get("register")
    if register is None:
        return
    for copy, address in _copies(p):
        for size in [str(op) for op in copy.operands if isinstance(op, Register)]:
            text = f"mbarrier.arrive.expect_tx.shared::cta.b64 {register}, {address}, {size};"
            yield insertion(after(copy), p.guard(copy) + text)
    for wait, address in waits:
        for place in [*_beside(p, wait), *p.places()[:8]]:
            yield insertion(place, f"mbarrier.arrive.shared::cta.b64 {register}, {address};")


def _beside(p: Problem, wait: Instruction) -> list[Position]:
    """The ends of the blocks that do not write the state of ``wait``, and join a block that does."""
    flow = p.listing.flow(wait)
    writing = {flow.block(flow.index[w])[0] for w in _writes(p, wait, wait.operands[-1])}
    joins = {x for first in writing for x in flow.following(first)}
    return [flow.block_end(x) for x in flow.starts if x not in writing and joins & set(flow.following(x))]


def arrivals(p: Problem) -> Iterator[Repair]:
    """A missing arrival: at an address that is computed for nothing else; with the bytes of a copy, plain, or by
    cp.async."""
    for flow in p.listing.flows if p.having("mbarrier.init") else ():
        for i, ins in enumerate(flow.instructions):
            if ins.parts[0] in ("add", "mad") and ins.parts[-1][1:] == "32" and ins.operands[0] in p.unread:
                text = f"mbarrier.arrive.shared::cta.b64 _, [{ins.operands[0]}];"
                yield insertion(flow.block_end(i), text)
                yield insertion(flow.block_end(i), _ONE.format(text))
    for copy, address in _copies(p):
        sizes: list[object] = [n for i in range(len(copy.operands)) if (n := immediate(copy, i)) is not None]
        sizes += [op for op in copy.operands if isinstance(op, Register)]
        for size in dict.fromkeys([*p.numbers("bytes"), *sizes]):
            for verb in _EXPECT:
                yield insertion(before(copy), f"{p.guard(copy)}{verb} {address}, {size};")
    if p.hazard.code == "deadlock":
        # A thread that sets up an mbarrier may announce the bytes that others send.
        for ins in p.having("mbarrier.init")[:4]:
            for size in p.numbers("bytes")[:2]:
                yield insertion(after(ins), f"{p.guard(ins)}{_EXPECT[0]} {_address(p, ins)}, {size};")
    waited = [a for w in p.having(*_WAITS) if (a := _address(p, w))]
    known = {p.listing.source(ins)[len(p.guard(ins)) :] for ins in p.having("mbarrier.arrive") if "_" in ins.text}
    texts = [*sorted(known), *(f"mbarrier.arrive.shared::cta.b64 _, {a};" for a in dict.fromkeys(waited))]
    for text in texts[:4]:
        for place in p.places()[:12]:
            yield insertion(place, text)
            yield insertion(place, _ONE.format(text))
    for ins in p.having("mbarrier.arrive", "cp.async.mbarrier.arrive"):
        named = _address(p, ins)
        if named is not None:
            yield insertion(before(ins), f"cp.async.mbarrier.arrive.shared::cta.b64 {named};")
            yield insertion(after(ins), f"mbarrier.arrive.shared::cta.b64 _, {named};")
    addresses = dict.fromkeys(a for ins in p.having("mbarrier.") if (a := _address(p, ins)))
    for ins in p.having("cp.async.ca", "cp.async.cg")[:3]:
        for address in addresses:
            yield insertion(after(ins), f"cp.async.mbarrier.arrive.shared::cta.b64 {address};")
            yield insertion(after(ins), f"cp.async.mbarrier.arrive.noinc.shared::cta.b64 {address};")


def guards(p: Problem) -> Iterator[Repair]:
    """One thread instead of all executes an arrival, an init or a bulk copy."""
    known = dict.fromkeys(p.guard(ins) for ins in p.having("mbarrier", "cp.async.bulk") if ins.guard)
    unread = [r for r in p.unread if isinstance(r, Register) and r.type == "pred"]
    for ins in p.having("mbarrier.arrive", "mbarrier.init", "cp.async.bulk", "mbarrier.expect_tx"):
        if ins.guard is None and not any(x in ins.parts for x in ("commit_group", "wait_group")):
            source = p.listing.source(ins)
            words = f"let one thread execute PTX line {ins.line}"
            # First by a predicate that its block computes for nothing else.
            flow = p.listing.flow(ins)
            first = flow.block(flow.index[ins])[0]
            own = [r for r in unread if any(first <= flow.index[w] < flow.index[ins] for w in _writes(p, ins, r))]
            for guard in dict.fromkeys([*(f"@{r} " for r in own), *known]):
                yield Repair(f"{words}: {guard.strip()}", (Edit(ins.start, ins.start, guard),))
            yield Repair(words, (Edit(ins.start, ins.end, _ONE.format(source)),))


def waits(p: Problem) -> Iterator[Repair]:
    """A wait for the mbarrier of a copy."""
    for copy in [p.first, *p.having("cp.async.bulk")][:4]:
        address = _address(p, copy)
        if address is None:
            continue
        for parity in (0, 1):
            wait = f"mbarrier.try_wait.parity.shared::cta.b64 %fix_done, {address}, {parity};"
            text = f"{{ .reg .pred %fix_done; FIX_WAIT: {wait} @!%fix_done bra FIX_WAIT; }}"
            for place in p.places()[:8]:
                yield insertion(place, text)
