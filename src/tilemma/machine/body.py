"""The inside of one entry or function: scopes, registers, labels and instructions (PTX ISA, "Syntax")."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tilemma.machine import syntax
from tilemma.machine.lexer import Token, statement_tokens, syntax_error
from tilemma.machine.parser import Parser

_SPECIAL = {
    "%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid", "%clock", "%clock_hi", "%clock64",
    "%globaltimer", "%globaltimer_lo", "%globaltimer_hi", "%dynamic_smem_size", "%total_smem_size",
    "%lanemask_eq", "%lanemask_le", "%lanemask_lt", "%lanemask_ge", "%lanemask_gt", "%is_explicit_cluster",
    "%cluster_ctarank", "%cluster_nctarank", "%aggr_smem_size", "%reserved_smem_offset_begin",
    "%reserved_smem_offset_end", "%reserved_smem_offset_cap", "%current_graph_exec",
}  # fmt: skip
_SPECIAL_VECTOR = {
    "%tid", "%ntid", "%ctaid", "%nctaid", "%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid",
}  # fmt: skip
_SPECIAL |= {f"{name}.{axis}" for name in _SPECIAL_VECTOR for axis in "xyz"}
_SPECIAL |= {f"%envreg{i}" for i in range(32)} | {f"%reserved_smem_offset_{i}" for i in range(2)}
_SPECIAL |= {f"%pm{i}{width}" for i in range(8) for width in ("", "_64")}
# Parts of a register in video instructions.
_SELECTOR = re.compile(r"b[0-7]{1,4}|h[0-3]{1,2}")
# Operands between commas, and the plain ones.
_OPERAND = re.compile(r"(?:[^,{}\[\]]|\{[^{}]*\}|\[[^\[\]]*\])+")
_NAME = re.compile(r"[A-Za-z_$%][\w$]*", re.ASCII)
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)")
_SINGLE = re.compile(r"0[fF][0-9a-fA-F]{8}")
_ADDRESS = re.compile(r"\[([A-Za-z_$%][\w$]*)(?:\+(-?(?:0|[1-9][0-9]*)))?\]", re.ASCII)
_COMPONENTS = {"x": 0, "y": 1, "z": 2, "w": 3, "r": 0, "g": 1, "b": 2, "a": 3}

# Blocks in one another, and lists of operands: compilers write a few.
MAX_BLOCKS = 100
MAX_LISTS = 8


class _Scope:
    """Names of one ``{ }`` block; inner declarations hide outer ones."""

    def __init__(self, serial: int) -> None:
        self.serial = serial
        self.registers: dict[str, syntax.Register] = {}
        # The names of registers and families that stand in declarations.
        self.declared: set[str] = set()
        self.families: list[tuple[str, int, str]] = []
        self.vectors: dict[str, tuple[syntax.Register, ...]] = {}
        self.labels: dict[str, str] = {}
        self.variables: dict[str, str] = {}


class BodyParser:
    """Reads one body; ``formals`` are the parameters of a function."""

    def __init__(self, parser: Parser, formals: tuple[syntax.Parameter, ...] = ()) -> None:
        self.p = parser
        self.instructions: list[syntax.Instruction] = []
        self.label_index: dict[str, int] = {}
        self.registers: list[syntax.Register] = []
        # Operands by their text, until the next declaration.
        self.operands: dict[str, syntax.Operand] = {}
        # Lists of operands that are being read.
        self.depth = 0
        # Whether the instruction that is read is a call, where parentheses hold parameters.
        self.calls = False
        self.variables: list[syntax.Variable] = []
        self.tables: dict[str, tuple[str, ...]] = {}
        self.prototypes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self.scopes: list[_Scope] = []
        self.serial = 0
        self.outer = _Scope(0)
        for formal in formals:
            if formal.register is not None:
                self.outer.registers[formal.name] = formal.register
                self.registers.append(formal.register)

    def parse(self) -> syntax.Body:
        self.p.location = None
        self.scopes.append(self.outer)
        self.block()
        self.check_branches()
        return syntax.Body(
            tuple(self.instructions), self.label_index, tuple(self.registers), tuple(self.variables), self.tables,
            self.prototypes,
        )  # fmt: skip

    def check_branches(self) -> None:
        for ins in self.instructions:
            if ins.parts[0] == "bra":
                target = ins.operands[0] if ins.operands else None
                if not isinstance(target, syntax.Symbol) or target.name not in self.label_index:
                    shown = getattr(target, "name", "nothing").split("@")[0]
                    raise syntax_error(
                        self.p.name, ins.line, ins.column, f"no label `{shown}` here", len(ins.text)
                    )

    def block(self) -> None:
        p = self.p
        if len(self.scopes) == MAX_BLOCKS:
            raise p.error(f"more than {MAX_BLOCKS} blocks in one another")
        p.expect("{")
        self.serial += 1
        self.scopes.append(_Scope(self.serial))
        self.operands.clear()
        self.collect_labels()
        while not p.accept("}"):
            self.statement()
        self.scopes.pop()
        self.operands.clear()

    def collect_labels(self) -> None:
        """Collect the labels of this block (not of inner ones), which may be used before their definition."""
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
        token = p.tokens[p.position]
        if token.kind == "statement":
            self.plain_instruction(token)
            return
        if token.kind == "end":
            raise p.error("the body of the entry never ends: a `}` is missing")
        if token.text == "{":
            self.block()
        elif token.text == ";":
            p.advance()
        elif token.text == ".reg":
            self.register_declaration()
        elif token.text in (".shared", ".local", ".const", ".global", ".param"):
            self.variable()
        elif token.text in (".loc", ".pragma", ".file", ".section"):
            p.debug_directive()
        elif token.kind == "word" and p.tokens[p.position + 1].text == ":":
            self.label()
        elif token.kind == "word" or token.text == "@":
            self.instruction()
        else:
            raise p.error(f"{p.shown()} starts no statement")

    def variable(self) -> None:
        """A variable of this scope; a name that another scope of the body has used gets a serial number."""
        self.operands.clear()
        variable = self.p.variable(False)
        unique = variable.name
        if unique in self.scopes[-1].variables:
            raise self.p.error(f"the variable `{unique}` is declared twice in this scope")
        if any(v.name == unique for v in self.variables):
            unique = f"{variable.name}@{self.scopes[-1].serial}"
        self.scopes[-1].variables[variable.name] = unique
        self.variables.append(replace(variable, name=unique))

    def label(self) -> None:
        p = self.p
        token = p.advance()
        p.advance()
        unique = self.scopes[-1].labels.get(token.text)
        if unique is None:
            raise p.error("a brace before this label has no counterpart", token)
        if unique in self.label_index:
            raise p.error(f"the label `{token.text}` stands twice", token)
        if p.token.text in (".branchtargets", ".calltargets"):
            names = []
            while p.token.text != ";":
                p.advance()
                names.append(p.word())
            p.expect(";")
            self.tables[unique] = tuple(self.find_label(n) or n for n in names)
            return
        if p.accept(".callprototype"):
            results = p.parameters() if p.accept("(") else ()
            p.word()
            parameters = p.parameters() if p.accept("(") else ()
            p.skip_to(";")
            p.advance()
            self.prototypes[unique] = (tuple(x.size for x in results), tuple(x.size for x in parameters))
            return
        self.label_index[unique] = len(self.instructions)

    def register_declaration(self) -> None:
        p = self.p
        p.advance()
        self.operands.clear()
        vector = {".v2": 2, ".v4": 4}.get(p.token.text, 0)
        if vector:
            p.advance()
        kind = p.register_type()
        scope = self.scopes[-1]
        while True:
            token, name = p.token, p.word()
            families = (name.removeprefix(f) for f, count, _ in scope.families if name.startswith(f))
            if name in scope.declared or any(rest.isdigit() for rest in families):
                raise p.error(f"`{name}` is declared twice in this scope", token)
            scope.declared.add(name)
            if vector:
                parts = (self.new_register(f"{name}.{axis}", kind, scope) for axis in "xyzw"[:vector])
                scope.vectors[name] = tuple(parts)
            elif p.accept("<"):
                scope.families.append((name, p.integer(), kind))
                p.expect(">")
            else:
                scope.registers[name] = self.new_register(name, kind, scope)
            if not p.accept(","):
                break
        p.expect(";")

    def new_register(self, name: str, kind: str, scope: _Scope) -> syntax.Register:
        register = syntax.Register(f"{name}@{scope.serial}", kind)
        self.registers.append(register)
        return register

    def find_register(self, name: str) -> syntax.Register | None:
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
            root, _, component = name.rpartition(".")
            if root in scope.vectors and _COMPONENTS.get(component, 9) < len(scope.vectors[root]):
                return scope.vectors[root][_COMPONENTS[component]]
        return None

    def find_label(self, name: str) -> str | None:
        for scope in reversed(self.scopes):
            if name in scope.labels:
                return scope.labels[name]
        return None

    def find_variable(self, name: str) -> str:
        """The unique name of a variable of the body; a name from outside stays as it is."""
        for scope in reversed(self.scopes):
            if name in scope.variables:
                return scope.variables[name]
        return name

    # -- instructions
    def plain_instruction(self, statement: Token) -> None:
        """An instruction that is one token: its operands mostly are registers, integers and addresses."""
        p = self.p
        negated, predicate, name, text = statement.parts
        assert name is not None
        # Registers are numbered in the order of their first use.
        register = None if predicate is None else self.find_register(predicate)
        guard = None if register is None else syntax.Guard(register, negated == "!")
        operands: list[syntax.Operand] | None = []
        if name.startswith("call") or (predicate and (register is None or register.type != "pred")):
            operands = None
        elif text:
            operands = self.plain_operands(text)
        if operands is None:
            self.split_instruction(statement)
            return
        p.position += 1
        self.instructions.append(
            syntax.Instruction(
                name, tuple(operands), guard, statement.line, statement.column, " ".join(statement.text.split()),
                p.location, statement.start, statement.end,
            )
        )  # fmt: skip

    def split_instruction(self, statement: Token) -> None:
        """An instruction that is one token, by the tokens that it consists of."""
        p = self.p
        tokens, position = p.tokens, p.position
        p.tokens, p.position = [*statement_tokens(p.text, p.name, statement), tokens[-1]], 0
        try:
            self.instruction()
        finally:
            p.tokens, p.position = tokens, position
        p.position += 1

    def plain_operands(self, text: str) -> list[syntax.Operand] | None:
        """Operands of the forms that need no grammar; None where one has another."""
        pieces = _OPERAND.findall(text)
        if len(pieces) > 1 and ",".join(pieces) != text:
            return None
        found: list[syntax.Operand] = []
        known = self.operands
        for piece in pieces:
            operand = known.get(piece)
            if operand is None:
                operand = self.plain_operand(piece.strip())
                if operand is None:
                    return None
                known[piece] = operand
            found.append(operand)
        return found

    def plain_operand(self, text: str) -> syntax.Operand | None:
        """A register, a label, a decimal integer, bits of an f32, an address or a vector of registers."""
        if _NAME.fullmatch(text):
            if text == "_":
                return syntax.Sink()
            register = self.find_register(text)
            if register is not None or text[0] == "%" or any(text in s.vectors for s in self.scopes):
                return register
            label = None if text == "WARP_SZ" else self.find_label(text)
            return None if label is None else syntax.Symbol(label)
        if _DECIMAL.fullmatch(text):
            return syntax.Immediate(int(text))
        if _SINGLE.fullmatch(text):
            return syntax.Immediate(int(text[2:], 16), "f32")
        if (match := _ADDRESS.fullmatch(text)) is not None:
            register = self.find_register(match[1])
            return None if register is None else syntax.Address(register, int(match[2] or 0))
        if text[:1] == "{" and text.find("}") == len(text) - 1:
            items = [self.find_register(x.strip()) for x in text[1:-1].split(",")]
            if all(x is not None for x in items):
                return syntax.Vector(tuple(x for x in items if x is not None))
        return None

    def instruction(self) -> None:
        p = self.p
        first = p.token
        guard = self.guard() if p.accept("@") else None
        opcode = p.advance()
        if opcode.kind != "word":
            raise p.error(f"expected an instruction, found `{opcode.text}`", opcode)
        name = opcode.text
        while p.token.kind == "directive":
            # nvcc puts a blank before some modifiers (`.bulk_group .L2::cache_hint`).
            name += p.advance().text
        operands: list[syntax.Operand] = []
        self.calls = name.split(".")[0] == "call"
        while not p.accept(";"):
            operands.append(self.operand())
            if not p.accept(",") and p.token.text != ";":
                raise p.error(f"expected `,` or `;` in `{name}`, found {p.shown()}")
        end = p.tokens[p.position - 1].end
        text = " ".join(p.text[first.start : end].split())
        self.instructions.append(
            syntax.Instruction(
                name, tuple(operands), guard, first.line, first.column, text, p.location, first.start, end
            )
        )

    def guard(self) -> syntax.Guard:
        p = self.p
        negated = p.accept("!")
        token = p.token
        register = self.find_register(p.word())
        if register is None or register.type != "pred":
            raise p.error(f"`{token.text}` is no predicate register", token)
        return syntax.Guard(register, negated)

    def operand(self) -> syntax.Operand:
        first = self.simple()
        if self.p.accept("|"):
            return syntax.Pair(first, self.simple())
        return first

    def simple(self) -> syntax.Operand:
        p = self.p
        token = p.token
        readers: dict[str, Callable[[], syntax.Operand]] = {"[": self.address, "{": self.vector}
        if self.calls:
            readers["("] = partial(self.vector, "(", ")")
        if token.text in readers and token.kind == "punct":
            if self.depth == MAX_LISTS:
                raise p.error(f"more than {MAX_LISTS} brackets in one another")
            self.depth += 1
            read = readers[token.text]()
            self.depth -= 1
            return read
        after = p.tokens[min(p.position + 1, len(p.tokens) - 1)]
        if token.text == "-" and after.kind == "word":
            p.advance()
            operand = self.named(p.advance())
            if not isinstance(operand, (syntax.Register, syntax.Selected)):
                raise p.error(f"`{after.text}` is no register", after)
            return syntax.Negative(operand)
        if token.text == "!" and after.kind == "word":
            p.advance()
            name = p.token
            register = self.find_register(p.word())
            if register is None:
                raise p.error(f"the register `{name.text}` is not declared", name)
            return syntax.Not(register)
        if token.kind in ("int", "float") or token.text in ("-", "~", "!", "(", "+"):
            return p.operand_number()
        if token.kind != "word":
            raise p.error(f"expected an operand, found {p.shown()}")
        p.advance()
        if token.text == "_":
            return syntax.Sink()
        return self.named(token)

    def named(self, token: Token) -> syntax.Operand:
        name = token.text
        register = self.find_register(name)
        if register is not None:
            return register
        if name in _SPECIAL:
            return syntax.Special(name)
        if name in _SPECIAL_VECTOR:
            axes = tuple(syntax.Special(f"{name}.{axis}") for axis in "xyz")
            return syntax.Vector((*axes, syntax.Immediate(0)))
        if name == "WARP_SZ":
            return syntax.Immediate(32)
        for scope in reversed(self.scopes):
            if name in scope.vectors:
                return syntax.Vector(scope.vectors[name])
        if name.startswith("%") and "." not in name:
            raise self.p.error(f"the register `{name}` is not declared", token)
        root, _, selector = name.rpartition(".")
        part = self.find_register(root) if root and _SELECTOR.fullmatch(selector) else None
        if part is not None:
            return syntax.Selected(part, selector)
        label = self.find_label(name)
        if label is not None:
            return syntax.Symbol(label)
        name = self.find_variable(name)
        offset = 0
        if self.p.token.text == "+":
            self.p.advance()
            offset = self.p.constant()
        return syntax.Symbol(name, offset)

    def vector(self, opening: str = "{", closing: str = "}") -> syntax.Vector:
        """``{a, b}``, or ``(a, b)``: the parameters of a call."""
        self.p.expect(opening)
        items: list[syntax.Operand] = []
        while not self.p.accept(closing):
            items.append(self.simple())
            if not self.p.accept(",") and self.p.token.text != closing:
                raise self.p.error(f"expected `,` or `{closing}`, found {self.p.shown()}")
        return syntax.Vector(tuple(items))

    def address(self) -> syntax.Address:
        p = self.p
        p.expect("[")
        token = p.token
        base = p.operand_number() if token.kind == "int" else self.named(p.advance())
        if not isinstance(base, (syntax.Register, syntax.Symbol, syntax.Immediate)):
            raise p.error(f"`{token.text}` is no address", token)
        offset, coordinates = 0, None
        if isinstance(base, syntax.Symbol):
            offset, base = base.offset, syntax.Symbol(base.name)
        while p.token.text in ("+", "-"):
            offset += p.constant() if p.advance().text == "+" else -p.integer()
        if p.accept(","):
            coordinates = self.vector().items
        p.expect("]")
        return syntax.Address(base, offset, coordinates)
