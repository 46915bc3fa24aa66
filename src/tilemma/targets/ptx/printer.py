"""The PTX printer: lane IR as text, with directives, register declarations, labels for structured control flow and
source positions."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tilemma.atoms import CopyAtom, MmaAtom, catalogue
from tilemma.errors import Span
from tilemma.ir import lane
from tilemma.targets.ptx.version import operations, ptx_version

# Predicated instructions instead of a branch: bodies of at most this many instructions.
PREDICATE_LIMIT = 4


def print_kernel(kernel: lane.LaneKernel) -> str:
    """``kernel`` as a separate module, for the lowest PTX version that has the instructions in it."""
    return print_module((kernel,))


def print_module(kernels: Sequence[lane.LaneKernel], arch: str | None = None) -> str:
    """All of ``kernels`` as one module for ``arch`` (default: their target)."""
    arch = arch or kernels[0].arch
    assert all(k.arch == arch for k in kernels), "one target a module"
    found = [tuple(operations(k.body)) for k in kernels]
    major, minor = max(map(ptx_version, kernels, found), default=(7, 0))
    files = _files(found)
    strings: dict[str, str] = {}
    bodies = [_Printer(k, files, strings).entry() for k in kernels]
    option = kernels[0].option if len({k.option for k in kernels}) == 1 else ""
    # `assemble` reads the option from this line.
    lines = [f"// ptxas {option}"] if option else []
    lines += [f".version {major}.{minor}", f".target {arch}", ".address_size 64", ""]
    lines += [f'.file {n} "{_escaped(name)}"' for name, n in files.items()]
    alignment = max((k.shared_alignment for k in kernels), default=16)
    if any(k.shared for k in kernels):
        lines.append(f".extern .shared .align {alignment} .b8 shared[];")
    if strings:
        lines.append(".extern .func (.param .b32 status) vprintf (.param .b64 format, .param .b64 arguments);")
        for text, name in strings.items():
            data = [*text.encode(), 0]
            lines.append(f".global .align 1 .b8 {name}[{len(data)}] = {{{', '.join(map(str, data))}}};")
    for body in bodies:
        lines += ["", *body]
    return "\n".join(lines) + "\n"


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')


def _files(kernels: Iterable[Iterable[lane.LaneOp]]) -> dict[str, int]:
    named = dict.fromkeys([op.span.file for ops in kernels for op in ops if op.span is not None])
    return {file: n for n, file in enumerate(named, 1)}


def immediate(i: lane.Imm) -> str:
    """An immediate; floats bit by bit (PTX ISA, Floating-Point Constants)."""
    if i.type in ("f32", "f64"):
        if i.type == "f32":
            # A value that rounds beyond the largest f32 is infinite.
            value = math.copysign(math.inf, i.value) if abs(i.value) >= 2.0**128 - 2.0**103 else i.value
            bits = struct.unpack("<I", struct.pack("<f", value))[0]
            return f"0f{bits:08X}"
        return f"0d{struct.unpack('<Q', struct.pack('<d', i.value))[0]:016X}"
    if i.type in ("b32", "b64", "u64") and not -16 < int(i.value) < 1024:
        width = 32 if i.type == "b32" else 64
        return f"0x{int(i.value) & ((1 << width) - 1):X}"
    return str(int(i.value))


def operand(x: lane.LaneOperand) -> str:
    """An operand as PTX spells it."""
    if isinstance(x, lane.Reg):
        return "%" + x.name
    match x:
        case lane.Imm():
            return immediate(x)
        case lane.Special():
            return x.name
        case lane.Mem():
            return f"[{address(x)}]"
        case lane.Vec():
            return "{" + ", ".join(operand(r) for r in x.regs) + "}"
        case lane.Coordinates():
            return f"[{operand(x.map)}, {{{', '.join(operand(c) for c in x.coords)}}}]"
    raise AssertionError(x)


def address(m: lane.Mem) -> str:
    base = operand(m.base)
    if m.offset == 0:
        return base
    return f"{base}+{m.offset}"


class _Printer:
    def __init__(self, kernel: lane.LaneKernel, files: dict[str, int], strings: dict[str, str]) -> None:
        self.kernel, self.files, self.strings = kernel, files, strings
        self.lines: list[str] = []
        self.indent = 1
        self.labels = 0
        self.scratch = 0
        self.registers: dict[str, list[str]] = {}
        self.known: set[str] = set()
        # Of the operands of multiplies, by id: all belong to the kernel.
        self.operands: dict[int, list[str]] = {}
        self.loops: list[tuple[str, str]] = []
        self.continues = 0
        self.where: Span | None = None
        self.prints = 0
        self.print_bytes = 0

    # ---- the entry -------------------------------------------------------------------------------------

    def entry(self) -> list[str]:
        k = self.kernel
        self.body(k.body)
        params = ",\n".join(f"    {_param(p.type, p.name)}" for p in k.params)
        head = [f".visible .entry {k.name}("] + ([params] if params else []) + [")"]
        head.append(f"    .maxntid {k.threads}, 1, 1")
        if k.min_blocks is not None:
            head.append(f"    .minnctapersm {k.min_blocks}")
        if k.max_registers is not None:
            head.append(f"    .maxnreg {k.max_registers}")
        if k.cluster is not None:
            head.append(f"    .reqnctapercluster {', '.join(map(str, k.cluster))}")
            head.append("    .explicitcluster")
        head.append("{")
        for local in k.locals:
            head.append(f"    .local .align {local.alignment} .b8 {local.name}[{local.bytes}];")
        if self.print_bytes:
            head.append(f"    .local .align 8 .b8 print_arguments[{self.print_bytes}];")
        for type_, names in self.registers.items():
            for i in range(0, len(names), 8):
                head.append(f"    .reg .{type_} {', '.join(names[i : i + 8])};")
        return [*head, "", *self.lines, "    ret;", "}"]

    def note(self, regs: Iterable[lane.Reg]) -> None:
        """Declare those of ``regs`` that are new."""
        known = self.known
        for reg in regs:
            name = reg.name
            if name not in known:
                known.add(name)
                self.registers.setdefault(reg.type, []).append("%" + name)

    def fresh(self, type_: str) -> str:
        self.scratch += 1
        reg = lane.Reg(f"{'p' if type_ == 'pred' else 't'}__{self.scratch}", type_)
        self.note((reg,))
        return operand(reg)

    def label(self, hint: str) -> str:
        self.labels += 1
        return f"${self.kernel.name}_{hint}_{self.labels}"

    def write(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def locate(self, span: Span | None) -> None:
        if span is None or span is self.where or span == self.where:
            return
        self.where = span
        self.write(f".loc {self.files[span.file]} {span.line} {span.column}")

    # ---- operations ------------------------------------------------------------------------------------

    def body(self, ops: lane.LaneBody) -> None:
        for op in ops:
            self.op(op)

    def op(self, op: lane.LaneOp) -> None:
        if isinstance(op, (lane.Instr, lane.AtomInstr, lane.CopyInstr)):
            self.locate(op.span)
            self.write(self.instruction(op))
            return
        self.note(_registers(op))
        match op:
            case lane.Comment():
                self.write(f"// {op.text}")
                return
            case lane.LaneGuarded():
                return
            case lane.LaneFor():
                self.for_loop(op)
                return
            case lane.LaneWhile():
                self.while_loop(op)
                return
            case lane.LaneUntil():
                self.until(op)
                return
            case lane.LaneIf():
                self.branch(op)
                return
        self.locate(op.span)
        match op:
            case lane.LaneBreak():
                self.write(f"bra {self.loops[-1][1]};")
            case lane.LaneContinue():
                self.continues += 1
                self.write(f"bra {self.loops[-1][0]};")
            case lane.LaneExit():
                self.write("exit;")
            case lane.LanePrint():
                self.print(op)
            case _:
                raise AssertionError(op)

    def instruction(self, op: lane.Instr | lane.AtomInstr | lane.CopyInstr) -> str:
        """The text of ``op``, whose new registers are declared."""
        if isinstance(op, lane.AtomInstr):
            return self.atom(op)
        if not isinstance(op, lane.Instr):
            self.note(_registers(op))
            return _guard(op.guard, False) + _copy(op)
        texts = []
        for x in (*op.dst, *op.src):
            if type(x) is lane.Reg:
                if x.name not in self.known:
                    self.note((x,))
                texts.append("%" + x.name)
            else:
                if type(x) is not lane.Imm:
                    self.note(lane.registers(x))
                texts.append(operand(x))
        if op.guard is not None:
            self.note((op.guard,))
        operands = ", ".join(texts)
        if op.mnemonic == "elect.sync":
            # Its other result, the number of the elected lane, is not used.
            operands = f"_|{operands}"
        return f"{_guard(op.guard, op.negate)}{op.mnemonic}{' ' if operands else ''}{operands};"

    def atom(self, op: lane.AtomInstr) -> str:
        """The text of a multiply, whose new registers are declared."""
        atom = catalogue[op.atom]
        assert isinstance(atom, MmaAtom)
        d, a, b, c, e = (self.names(regs) for regs in (op.d, op.a, op.b, op.c, op.e))
        scales = self.names(op.scales)
        self.note(x for _, x in op.immediates if isinstance(x, lane.Reg))
        chosen: dict[str, Any] = {name: x if isinstance(x, int) else operand(x) for name, x in op.immediates}
        chosen |= zip(("sfa", "sfb"), scales, strict=False)
        return atom.emit(d=d, a=a, b=b, c=c if c and not atom.in_place else None, e=e or None, **chosen)

    def names(self, regs: tuple[lane.Reg, ...]) -> list[str]:
        """The texts of ``regs``, of which new ones are declared.  The multiplies of a tile share operands."""
        known = self.operands.get(id(regs))
        if known is None:
            self.note(regs)
            known = self.operands[id(regs)] = [operand(r) for r in regs]
        return known

    # ---- control ---------------------------------------------------------------------------------------

    def for_loop(self, op: lane.LaneFor) -> None:
        """A rotated loop: the test once before the loop, then at its end, with one branch for each iteration."""
        top, next_, done = self.label("loop"), self.label("next"), self.label("done")
        self.locate(op.span)
        var = operand(op.var)
        self.write(f"mov.b32 {var}, {operand(op.start)};")
        known = isinstance(op.start, lane.Imm) and isinstance(op.stop, lane.Imm) and op.start.value < op.stop.value
        test = self.fresh("pred")
        if not (known or op.entered):
            self.write(f"setp.ge.s32 {test}, {var}, {operand(op.stop)};")
            self.write(f"@{test} {_bra(op.stop)} {done};")
        self.mark(top)
        if op.unroll is not None:
            self.write('.pragma "nounroll";')
        self.loops.append((next_, done))
        self.indent += 1
        continues = self.continues
        self.body(op.body)
        self.indent -= 1
        self.loops.pop()
        if self.continues > continues:
            self.mark(next_)
        if op.past == "wraps":
            # The loop also ends if the next index wraps around, that is, is not larger than this one.
            room, last = self.fresh("pred"), self.fresh("s32")
            self.write(f"mov.b32 {last}, {var};")
            self.write(f"add.s32 {var}, {var}, {operand(op.step)};")
            self.write(f"setp.gt.s32 {room}, {var}, {last};")
            self.write(f"setp.lt.and.s32 {test}, {var}, {operand(op.stop)}, {room};")
        else:
            self.write(f"add.s32 {var}, {var}, {operand(op.step)};")
            kind = "u32" if op.past == "unsigned" else "s32"
            self.write(f"setp.lt.{kind} {test}, {var}, {operand(op.stop)};")
        self.write(f"@{test} {_bra(op.var)} {top};")
        self.mark(done)

    def while_loop(self, op: lane.LaneWhile) -> None:
        top, done = self.label("while"), self.label("done")
        self.mark(top)
        self.indent += 1
        self.body(op.setup)
        self.write(f"@!{operand(op.cond)} bra {done};")
        self.loops.append((top, done))
        self.body(op.body)
        self.loops.pop()
        self.write(f"bra {top};")
        self.indent -= 1
        self.mark(done)

    def until(self, op: lane.LaneUntil) -> None:
        top = self.label("again")
        self.mark(top)
        self.indent += 1
        self.body(op.body)
        self.indent -= 1
        self.write(f"@!{operand(op.cond)} bra {top};")

    def branch(self, op: lane.LaneIf) -> None:
        if not op.otherwise and self.predicated(op.then, op.cond, False):
            return
        if not op.then and self.predicated(op.otherwise, op.cond, True):
            return
        jump = "bra.uni" if op.uniform else "bra"
        self.locate(op.span)
        done = self.label("endif")
        first, second = (op.then, op.otherwise) if op.then else (op.otherwise, ())
        other = self.label("else") if second else done
        self.write(f"@{'!' if op.then else ''}{operand(op.cond)} {jump} {other};")
        self.indent += 1
        self.body(first)
        self.indent -= 1
        if second:
            self.write(f"{jump} {done};")
            self.mark(other)
            self.indent += 1
            self.body(second)
            self.indent -= 1
        self.mark(done)

    def predicated(self, body: lane.LaneBody, cond: lane.Reg, negate: bool) -> bool:
        """If-conversion: write a short body without branches as predicated instructions; False if not possible."""
        if len(body) > PREDICATE_LIMIT and sum([type(x) is not lane.Comment for x in body]) > PREDICATE_LIMIT:
            return False
        for x in body:
            if isinstance(x, lane.Instr):
                if x.guard is not None or any(r == cond for r in _written(x)) or ".sync" in x.mnemonic:
                    return False
            elif not isinstance(x, (lane.Comment, lane.LaneExit, lane.LaneBreak)):
                return False
        sign = "!" if negate else ""
        for x in body:
            if isinstance(x, lane.Comment):
                self.write(f"// {x.text}")
                continue
            self.locate(x.span)
            if isinstance(x, lane.Instr):
                text = self.instruction(x)
            else:
                text = "exit;" if isinstance(x, lane.LaneExit) else f"bra {self.loops[-1][1]};"
            self.write(f"@{sign}{operand(cond)} {text}")
        return True

    def mark(self, label: str) -> None:
        self.lines.append("  " + "    " * (self.indent - 1) + f"{label}:")
        # A label starts a basic block: the source position is repeated, because ptxas may move blocks.
        self.where = None

    # ---- printf ----------------------------------------------------------------------------------------

    def print(self, op: lane.LanePrint) -> None:
        """Call vprintf with the format and a block of arguments, each at its natural alignment."""
        name = self.strings.setdefault(op.format, f"{self.kernel.name}_text_{len(self.strings)}")
        at = 0
        stores = []
        for a in op.args:
            wide = a.type in ("f64", "s64", "u64", "b64")
            size = 8 if wide else 4
            at = -(-at // size) * size
            stores.append(f"st.local.b{size * 8} [print_arguments+{at}], {operand(a)};")
            at += size
        self.print_bytes = max(self.print_bytes, at)
        for text in stores:
            self.write(text)
        text_at, args_at = self.fresh("u64"), self.fresh("u64")
        self.write(f"mov.u64 {text_at}, {name};")
        self.write(f"cvta.global.u64 {text_at}, {text_at};")
        if at:
            self.write(f"mov.u64 {args_at}, print_arguments;")
            self.write(f"cvta.local.u64 {args_at}, {args_at};")
        else:
            self.write(f"mov.u64 {args_at}, 0;")
        self.write("{")
        self.write(".param .b64 format; .param .b64 arguments; .param .b32 status;")
        self.write(f"st.param.b64 [format], {text_at};")
        self.write(f"st.param.b64 [arguments], {args_at};")
        self.write("call.uni (status), vprintf, (format, arguments);")
        self.write("}")


def _param(type_: str, name: str) -> str:
    return f".param .align 128 .b8 {name}[128]" if type_ == "tensormap" else f".param .{type_} {name}"


def _bra(x: lane.Reg | lane.Imm) -> str:
    return "bra.uni" if isinstance(x, lane.Imm) or x.uniform else "bra"


def _guard(guard: lane.Reg | None, negate: bool) -> str:
    return "" if guard is None else f"@{'!' if negate else ''}{operand(guard)} "


def _copy(op: lane.CopyInstr) -> str:
    atom = catalogue[op.atom]
    assert isinstance(atom, CopyAtom)
    return atom.emit(
        address=address(op.address),
        registers=[operand(r) for r in op.registers],
        source=address(op.source) if op.source is not None else "",
        source_size=operand(op.source_size) if op.source_size is not None else None,
    )


def _written(op: lane.Instr) -> Iterator[lane.Reg]:
    for x in op.dst:
        yield from lane.registers(x)


def _registers(op: lane.LaneOp) -> Iterable[lane.Reg]:
    """The registers that ``op`` itself names."""
    named: Iterable[lane.LaneOperand | None]
    match op:
        case lane.CopyInstr():
            named = (*op.registers, op.address, op.source, op.source_size, op.guard)
        case lane.LaneFor():
            named = (op.var, op.start, op.stop, op.step)
        case lane.LaneIf() | lane.LaneWhile() | lane.LaneUntil():
            return (op.cond,)
        case lane.LanePrint():
            named = op.args
        case _:
            return ()
    found: list[lane.Reg] = []
    for x in named:
        if isinstance(x, lane.Reg):
            found.append(x)
        elif x is not None and not isinstance(x, lane.Imm):
            found += lane.registers(x)
    return found
