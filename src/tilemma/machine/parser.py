"""PTX text to frozen records."""

from __future__ import annotations

import struct
from collections.abc import Callable

from tilemma.machine.cursor import Cursor
from tilemma.machine.lexer import Token, syntax_error
from tilemma.machine.syntax import (
    Address,
    Entry,
    Guard,
    Immediate,
    Instruction,
    Location,
    Module,
    Not,
    Operand,
    Pair,
    Parameter,
    Register,
    Sink,
    Special,
    Symbol,
    Variable,
    Vector,
)

TYPE_BYTES = {
    "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "b32": 4, "u32": 4,
    "s32": 4, "f32": 4, "f16x2": 4, "bf16x2": 4, "tf32": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8,
    "b128": 16, "pred": 1, "e4m3": 1, "e5m2": 1, "e4m3x2": 2, "e5m2x2": 2,
}  # fmt: skip

_SPECIAL = {
    "%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid", "%clock", "%clock_hi", "%clock64",
    "%globaltimer", "%globaltimer_lo", "%globaltimer_hi", "%dynamic_smem_size", "%total_smem_size",
    "%lanemask_eq", "%lanemask_le", "%lanemask_lt", "%lanemask_ge", "%lanemask_gt", "%is_explicit_cluster",
    "%cluster_ctarank", "%cluster_nctarank", "%aggr_smem_size", "%reserved_smem_offset_begin",
}  # fmt: skip
_SPECIAL_VECTOR = {
    "%tid", "%ntid", "%ctaid", "%nctaid", "%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid",
}  # fmt: skip
_SPECIAL |= {f"{name}.{axis}" for name in _SPECIAL_VECTOR for axis in "xyz"}

_ENTRY_DIRECTIVES = {
    ".maxntid", ".reqntid", ".minnctapersm", ".maxnctapersm", ".maxnreg", ".reqnctapercluster",
    ".maxclusterrank", ".explicitcluster", ".noreturn", ".pragma", ".blocksareclusters",
}  # fmt: skip
_LINKAGE = {".visible", ".extern", ".weak", ".common"}


class _Scope:
    """Names of one ``{ }`` block; inner declarations hide outer ones."""

    def __init__(self, serial: int) -> None:
        self.serial = serial
        self.registers: dict[str, Register] = {}
        self.families: list[tuple[str, int, str]] = []
        self.labels: dict[str, str] = {}
        self.variables: dict[str, str] = {}


class Parser(Cursor):
    """Recursive descent over the tokens of one module."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text, name)
        self.files: dict[int, str] = {}
        self.location: Location | None = None

    def module(self) -> Module:
        version, target = (0, 0), ""
        entries: dict[str, Entry] = {}
        variables: list[Variable] = []
        while self.token.kind != "end":
            token = self.token
            if self.accept(".version"):
                major, _, minor = self.advance().text.partition(".")
                version = (int(major), int(minor or 0)) if major.isdigit() else (0, 0)
            elif self.accept(".target"):
                target = self.word()
                while self.accept(","):
                    self.word()
            elif self.accept(".address_size"):
                if self.integer() != 64:
                    raise self.error("only `.address_size 64` is supported", token)
            elif token.text in (".file", ".section", ".pragma", ".loc"):
                self.debug_directive()
            elif token.text in _LINKAGE:
                self.advance()
                extern = token.text == ".extern"
                if self.token.text == ".entry":
                    entry = self.entry()
                    entries[entry.name] = entry
                elif self.token.text == ".func":
                    self.function(extern)
                else:
                    variables.append(self.variable(extern))
            elif token.text == ".entry":
                entry = self.entry()
                entries[entry.name] = entry
            elif token.text in (".shared", ".global", ".const"):
                variables.append(self.variable(False))
            else:
                raise self.error(f"{self.shown()} starts no module-level directive that is supported")
        if version == (0, 0) or not target:
            raise syntax_error(self.name, 1, 1, "the text lacks `.version` or `.target`")
        return Module(version, target, entries, tuple(variables), self.files, self.text, self.name)

    def function(self, extern: bool) -> None:
        """A declaration of an external function; which of them can be called is the machine's business."""
        if not extern:
            raise self.error("`.func` is not supported: inline the function")
        while not self.accept(";"):
            if self.token.kind == "end" or self.token.text == "{":
                raise self.error("`.func` is not supported: inline the function")
            self.advance()

    def debug_directive(self) -> None:
        directive = self.advance().text
        if directive == ".file":
            index = self.integer()
            self.files[index] = self.advance().text.strip('"')
            while self.accept(","):
                self.integer()
        elif directive == ".loc":
            file, line, column = self.integer(), self.integer(), self.integer()
            self.location = Location(self.files.get(file, f"file {file}"), line, max(1, column))
            while self.accept(","):
                self.word()
                if self.token.kind in ("word", "int", "punct") and not self.accept("+"):
                    self.advance()
                while self.token.text == "+":
                    self.advance()
                    self.advance()
        elif directive == ".pragma":
            while not self.accept(";"):
                self.advance()
        else:  # .section name { ... }
            self.advance()
            self.expect("{")
            while not self.accept("}"):
                if self.token.kind == "end":
                    raise self.error("a `.section` that never ends")
                self.advance()

    def variable(self, extern: bool) -> Variable:
        token = self.advance()
        space = token.text[1:]
        if space not in ("shared", "global", "const", "local", "param"):
            raise self.error(f"`{token.text}` is no state space of a variable", token)
        alignment, count = 0, 1
        if self.accept(".align"):
            alignment = self.integer()
        vector = {".v2": 2, ".v4": 4}.get(self.token.text)
        if vector:
            self.advance()
        element = self.type_name()
        name = self.word()
        size = TYPE_BYTES[element] * (vector or 1)
        alignment = alignment or size
        while self.accept("["):
            count = 0 if self.token.text == "]" else count * self.integer()
            self.expect("]")
        initial = self.initializer(element) if self.accept("=") else b""
        self.expect(";")
        return Variable(name, space, alignment, size * count, token.line, extern, initial)

    def initializer(self, element: str) -> bytes:
        if self.accept("{"):
            out = b""
            while not self.accept("}"):
                out += self.initializer(element)
                self.accept(",")
            return out
        value = self.operand_number()
        width = TYPE_BYTES[element]
        bits = value.value
        if value.kind == "f64" and element == "f32":
            bits = struct.unpack("<I", struct.pack("<f", struct.unpack("<d", struct.pack("<Q", bits))[0]))[0]
        return (bits & ((1 << 8 * width) - 1)).to_bytes(width, "little")

    def type_name(self) -> str:
        name = self.token.text[1:]
        if self.token.kind != "directive" or name not in TYPE_BYTES:
            raise self.error(f"{self.shown()} is no PTX type")
        self.advance()
        return name

    # -- entries
    def entry(self) -> Entry:
        line = self.expect(".entry").line
        name = self.word()
        parameters = self.parameters() if self.accept("(") else ()
        directives: dict[str, tuple[int, ...]] = {}
        while self.token.text != "{":
            token = self.advance()
            if token.text not in _ENTRY_DIRECTIVES:
                raise self.error(f"`{token.text}` is no directive of an entry", token)
            numbers: list[int] = []
            while self.token.kind in ("int", "string") or self.token.text in (",", ";"):
                if self.token.kind == "int":
                    numbers.append(self.integer())
                else:
                    self.advance()
            directives[token.text[1:]] = tuple(numbers)
        body = _Body(self)
        body.parse()
        return Entry(
            name, parameters, directives, tuple(body.instructions), body.label_index, tuple(body.registers),
            tuple(body.variables), body.branch_targets, line,
        )  # fmt: skip

    def parameters(self) -> tuple[Parameter, ...]:
        found: list[Parameter] = []
        offset = 0
        while not self.accept(")"):
            token = self.expect(".param")
            alignment, count = 0, 1
            if self.accept(".align"):
                alignment = self.integer()
            element = self.type_name()
            while self.token.text in (".ptr", ".global", ".shared", ".const", ".local", ".align"):
                if self.advance().text == ".align":
                    self.integer()
            name = self.word()
            while self.accept("["):
                count *= self.integer()
                self.expect("]")
            size = TYPE_BYTES[element] * count
            alignment = alignment or TYPE_BYTES[element]
            offset = -(-offset // alignment) * alignment
            found.append(Parameter(name, element, alignment, size, offset, token.line))
            offset += size
            if not self.accept(",") and self.token.text != ")":
                raise self.error(f"expected `,` or `)`, found {self.shown()}")
        return tuple(found)

    def operand_number(self) -> Immediate:
        negative = self.accept("-")
        invert = not negative and self.accept("~")
        token = self.advance()
        if token.kind == "int":
            value = int(token.text.rstrip("U"), 0)
            return Immediate(-value if negative else ~value if invert else value)
        if token.kind != "float":
            raise self.error(f"expected a number, found `{token.text}`", token)
        text = token.text
        if text[:2] in ("0f", "0F"):
            return Immediate(int(text[2:], 16) ^ (0x80000000 if negative else 0), "f32")
        if text[:2] in ("0d", "0D"):
            return Immediate(int(text[2:], 16) ^ (1 << 63 if negative else 0), "f64")
        value_f = -float(text) if negative else float(text)
        return Immediate(struct.unpack("<Q", struct.pack("<d", value_f))[0], "f64")


class _Body:
    """The inside of one entry."""

    def __init__(self, parser: Parser) -> None:
        self.p = parser
        self.instructions: list[Instruction] = []
        self.label_index: dict[str, int] = {}
        self.registers: list[Register] = []
        self.variables: list[Variable] = []
        self.branch_targets: dict[str, tuple[str, ...]] = {}
        self.scopes: list[_Scope] = []
        self.serial = 0
        self.known: dict[str, Register] = {}

    def parse(self) -> None:
        self.p.location = None
        self.block()
        for ins in self.instructions:
            if ins.parts[0] == "bra":
                target = ins.operands[0] if ins.operands else None
                if not isinstance(target, Symbol) or target.name not in self.label_index:
                    shown = getattr(target, "name", "nothing").split("@")[0]
                    raise syntax_error(
                        self.p.name, ins.line, ins.column, f"no label `{shown}` here", len(ins.text)
                    )

    def block(self) -> None:
        p = self.p
        p.expect("{")
        self.serial += 1
        self.scopes.append(_Scope(self.serial))
        self.collect_labels()
        while not p.accept("}"):
            self.statement()
        self.scopes.pop()

    def collect_labels(self) -> None:
        """Labels may be used before they stand: find those of this block, not of inner ones."""
        depth, tokens = 0, self.p.tokens
        for i in range(self.p.position, len(tokens) - 1):
            text = tokens[i].text
            if text == "{":
                depth += 1
            elif text == "}":
                depth -= 1
                if depth < 0:
                    return
            elif text == ":" and tokens[i - 1].kind == "word" and depth == 0:
                name = tokens[i - 1].text
                self.scopes[-1].labels[name] = f"{name}@{self.serial}"

    def statement(self) -> None:
        p = self.p
        token = p.token
        if token.kind == "end":
            raise p.error("the body of the entry never ends: a `}` is missing")
        if token.text == "{":
            self.block()
        elif token.text == ";":
            p.advance()
        elif token.text == ".reg":
            self.register_declaration()
        elif token.text in (".shared", ".local", ".const", ".global", ".param"):
            variable = p.variable(False)
            self.scopes[-1].variables[variable.name] = variable.name
            self.variables.append(variable)
        elif token.text in (".loc", ".pragma", ".file", ".section"):
            p.debug_directive()
        elif token.kind == "word" and p.tokens[p.position + 1].text == ":":
            self.label()
        elif token.kind == "word" or token.text == "@":
            self.instruction()
        else:
            raise p.error(f"{p.shown()} starts no statement")

    def label(self) -> None:
        p = self.p
        token = p.advance()
        p.advance()
        unique = self.scopes[-1].labels[token.text]
        if unique in self.label_index:
            raise p.error(f"the label `{token.text}` stands twice", token)
        if p.token.text == ".branchtargets":
            p.advance()
            names = [p.word()]
            while p.accept(","):
                names.append(p.word())
            p.expect(";")
            self.branch_targets[unique] = tuple(self.find_label(n) or n for n in names)
            return
        self.label_index[unique] = len(self.instructions)

    def register_declaration(self) -> None:
        p = self.p
        p.advance()
        if p.token.text in (".v2", ".v4"):
            raise p.error("vector registers are not supported: declare scalars")
        kind = p.type_name()
        scope = self.scopes[-1]
        while True:
            name = p.word()
            if p.accept("<"):
                scope.families.append((name, p.integer(), kind))
                p.expect(">")
            else:
                scope.registers[name] = self.new_register(name, kind, scope)
            if not p.accept(","):
                break
        p.expect(";")

    def new_register(self, name: str, kind: str, scope: _Scope) -> Register:
        register = Register(f"{name}@{scope.serial}", kind)
        self.registers.append(register)
        return register

    def find_register(self, name: str) -> Register | None:
        for scope in reversed(self.scopes):
            known = scope.registers.get(name)
            if known is not None:
                return known
            for prefix, count, kind in scope.families:
                rest = name[len(prefix) :]
                if name.startswith(prefix) and rest.isdigit() and int(rest) < count and str(int(rest)) == rest:
                    register = self.new_register(name, kind, scope)
                    scope.registers[name] = register
                    return register
        return None

    def find_label(self, name: str) -> str | None:
        for scope in reversed(self.scopes):
            if name in scope.labels:
                return scope.labels[name]
        return None

    # -- instructions
    def instruction(self) -> None:
        p = self.p
        first = p.token
        guard = self.guard() if p.accept("@") else None
        opcode = p.advance()
        if opcode.kind != "word":
            raise p.error(f"expected an instruction, found `{opcode.text}`", opcode)
        operands: list[Operand] = []
        while not p.accept(";"):
            operands.append(self.operand())
            if not p.accept(",") and p.token.text != ";":
                raise p.error(f"expected `,` or `;` in `{opcode.text}`, found {p.shown()}")
        end = p.tokens[p.position - 1].end
        text = " ".join(p.text[first.start : end].split())
        self.instructions.append(
            Instruction(
                opcode.text, tuple(operands), guard, first.line, first.column, text, p.location, first.start, end
            )
        )

    def guard(self) -> Guard:
        p = self.p
        negated = p.accept("!")
        token = p.token
        register = self.find_register(p.word())
        if register is None or register.type != "pred":
            raise p.error(f"`{token.text}` is no predicate register", token)
        return Guard(register, negated)

    def operand(self) -> Operand:
        first = self.simple()
        if self.p.accept("|"):
            return Pair(first, self.simple())
        return first

    def simple(self) -> Operand:
        p = self.p
        token = p.token
        readers: dict[str, Callable[[], Operand]] = {"[": self.address, "{": self.vector, "(": self.tuple}
        if token.text in readers and token.kind == "punct":
            return readers[token.text]()
        if token.text == "!":
            p.advance()
            name = p.token
            register = self.find_register(p.word())
            if register is None:
                raise p.error(f"the register `{name.text}` is not declared", name)
            return Not(register)
        if token.kind in ("int", "float") or token.text in ("-", "~"):
            return p.operand_number()
        if token.kind != "word":
            raise p.error(f"expected an operand, found {p.shown()}")
        p.advance()
        if token.text == "_":
            return Sink()
        return self.named(token)

    def named(self, token: Token) -> Operand:
        name = token.text
        register = self.find_register(name)
        if register is not None:
            return register
        if name in _SPECIAL:
            return Special(name)
        if name == "WARP_SZ":
            return Immediate(32)
        if name.startswith("%"):
            raise self.p.error(f"the register `{name}` is not declared", token)
        label = self.find_label(name)
        if label is not None:
            return Symbol(label)
        offset = 0
        if self.p.token.text == "+":
            self.p.advance()
            offset = self.p.integer()
        return Symbol(name, offset)

    def vector(self) -> Vector:
        self.p.expect("{")
        items: list[Operand] = []
        while not self.p.accept("}"):
            items.append(self.simple())
            if not self.p.accept(",") and self.p.token.text != "}":
                raise self.p.error(f"expected `,` or `}}`, found {self.p.shown()}")
        return Vector(tuple(items))

    def tuple(self) -> Vector:
        """``(a, b)``: the parameters of a call."""
        self.p.expect("(")
        items: list[Operand] = []
        while not self.p.accept(")"):
            items.append(self.simple())
            if not self.p.accept(",") and self.p.token.text != ")":
                raise self.p.error(f"expected `,` or `)`, found {self.p.shown()}")
        return Vector(tuple(items))

    def address(self) -> Address:
        p = self.p
        p.expect("[")
        token = p.token
        base = p.operand_number() if token.kind == "int" else self.named(p.advance())
        if not isinstance(base, (Register, Symbol, Immediate)):
            raise p.error(f"`{token.text}` is no address", token)
        offset, coordinates = 0, None
        if isinstance(base, Symbol):
            offset, base = base.offset, Symbol(base.name)
        while p.token.text in ("+", "-"):
            sign = -1 if p.advance().text == "-" else 1
            offset += sign * p.integer()
        if p.accept(","):
            coordinates = self.vector().items
        p.expect("]")
        return Address(base, offset, coordinates)


def parse(text: str, name: str = "<ptx>") -> Module:
    """The module that ``text`` spells; PtxSyntax, with the line, where it is not PTX or not supported."""
    return Parser(text, name).module()
