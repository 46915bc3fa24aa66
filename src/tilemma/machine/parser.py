"""PTX text to frozen records: the directives of a module.  ``body`` reads the inside of entries and functions."""

from __future__ import annotations

import math
import re
import struct

import numpy as np

from tilemma.machine import constants, limits, syntax
from tilemma.machine.cursor import Cursor
from tilemma.machine.debug_info import Locations
from tilemma.machine.lexer import PtxSyntax, syntax_error

_ENTRY_DIRECTIVES = {
    ".maxntid", ".reqntid", ".minnctapersm", ".maxnctapersm", ".maxnreg", ".reqnctapercluster",
    ".maxclusterrank", ".explicitcluster", ".noreturn", ".pragma", ".blocksareclusters", ".abi_preserve",
    ".abi_preserve_control", ".language",
}  # fmt: skip
# A feature set may be that of one architecture (`a`) or of its family (`f`).
_ARCHITECTURE = re.compile(r"sm_\d{2,3}[af]?")
_LINKAGE = {".visible", ".extern", ".weak", ".common"}
_SPACES = {".shared", ".global", ".const", ".local", ".param"}
# Types of textures, samplers and surfaces (PTX ISA, "Texture Sampler and Surface Types").
_OPAQUE = {".texref", ".samplerref", ".surfref"}
_POINTER_ATTRIBUTES = {".ptr", ".global", ".shared", ".const", ".local", ".align", ".param"}
# The first version of PTX that has a target (PTX ISA, "Release Notes"; ptxas refuses lower ones).
_FIRST_VERSION = {
    "sm_75": (6, 3), "sm_80": (7, 0), "sm_86": (7, 1), "sm_87": (7, 4), "sm_89": (7, 8), "sm_90": (7, 8),
    "sm_90a": (8, 0), "sm_100": (8, 6), "sm_100a": (8, 6), "sm_120": (8, 7), "sm_120a": (8, 7),
    **dict.fromkeys(("sm_103", "sm_103a", "sm_121", "sm_121a", "sm_100f", "sm_103f", "sm_120f"), (8, 8)),
    **dict.fromkeys(("sm_88", "sm_110", "sm_110a", "sm_110f"), (9, 0)),
}  # fmt: skip


class Initial:
    """The initial bytes of a variable, and the addresses among them."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.relocations: list[tuple[int, str, int, bool, int]] = []


# Directives that concern the whole module, or that no body has: such a body is read.
_NOT_IN_BODIES = frozenset({".file", ".entry", ".func", ".section"})


class Parser(Cursor):
    """Recursive descent over the tokens of one module."""

    def __init__(self, text: str, name: str, only: str | None = None) -> None:
        super().__init__(text, name)
        # The entry whose body is read; None: all.
        self.only = only
        self.locations = Locations(text)
        self.location: syntax.Location | None = None
        self.entries: dict[str, syntax.Entry] = {}
        self.functions: dict[str, syntax.Function] = {}
        self.variables: list[syntax.Variable] = []
        self.aliases: list[tuple[str, str]] = []

    def module(self) -> syntax.Module:
        version, target = (0, 0), ""
        while self.token.kind != "end":
            token = self.token
            if self.accept(".version"):
                major, _, minor = self.advance().text.partition(".")
                version = (int(major), int(minor or 0)) if major.isdigit() else (0, 0)
            elif self.accept(".target"):
                if not _ARCHITECTURE.fullmatch(self.token.text):
                    raise self.error(f"{self.shown()} behind `.target` is no architecture, as `sm_90a` is")
                target = self.word()
                while self.accept(","):
                    self.word()
            elif self.accept(".address_size"):
                if self.integer() != 64:
                    raise self.error("only `.address_size 64` is supported", token)
            elif token.text in (".file", ".section", ".pragma", ".loc"):
                self.debug_directive()
            elif self.accept(".alias"):
                name = self.word()
                self.expect(",")
                self.aliases.append((name, self.word()))
                self.expect(";")
            elif token.text in _LINKAGE or token.text in (".entry", ".func", ".tex") or token.text in _SPACES:
                self.declaration()
            else:
                raise self.error(f"{self.shown()} starts no module-level directive that is supported")
        if version == (0, 0) or not target:
            raise syntax_error(self.name, 1, 1, "the text lacks `.version` or `.target`")
        first = _FIRST_VERSION.get(target, (0, 0))
        if version < first:
            what = f"`.version {version[0]}.{version[1]}` does not have {target}: it needs {first[0]}.{first[1]}"
            raise syntax_error(self.name, 1, 1, what)
        for name, aliasee in self.aliases:
            if aliasee in self.functions:
                self.functions[name] = self.functions[aliasee]
        return syntax.Module(
            version, target, self.entries, tuple(self.variables), self.functions, self.text, self.name
        )  # fmt: skip

    def declaration(self) -> None:
        """An entry, a function or a variable, after its linkage."""
        extern = False
        while self.token.text in _LINKAGE:
            extern = self.advance().text == ".extern" or extern
        if self.token.text == ".entry":
            entry = self.entry()
            if entry is not None:
                if entry.name in self.entries:
                    raise syntax_error(self.name, entry.line, 1, f"the entry `{entry.name}` stands twice")
                self.entries[entry.name] = entry
        elif self.token.text == ".func":
            function = self.function()
            known = self.functions.get(function.name)
            if known is None or known.body is None:
                self.functions[function.name] = function
        elif self.token.text == ".tex" or any(
            t.text in _OPAQUE for t in self.tokens[self.position + 1 : self.position + 2]
        ):
            # The use of a texture is refused, not its declaration.
            self.skip_to(";")
            self.advance()
        else:
            token, variable = self.token, self.variable(extern)
            if not extern and any(v.name == variable.name and not v.extern for v in self.variables):
                raise self.error(f"the variable `{variable.name}` is declared twice", token)
            self.variables.append(variable)

    def skip_to(self, *ends: str) -> None:
        while self.token.text not in ends:
            if self.token.kind == "end":
                raise self.error(f"expected `{ends[0]}`, found {self.shown()}")
            self.advance()

    def debug_directive(self) -> None:
        directive = self.advance().text
        if directive == ".file":
            self.integer()
            self.advance()
            while self.accept(","):
                self.integer()
        elif directive == ".loc":
            at = (self.integer(), self.integer(), self.integer())
            function, inlined = "", None
            while self.accept(","):
                kind = self.word()
                if kind == "function_name":
                    function = self.advance().text
                    if self.accept("+"):
                        self.integer()
                elif kind == "inlined_at":
                    inlined = (self.integer(), self.integer(), self.integer())
                else:
                    raise self.error(f"`{kind}` is no attribute of `.loc`")
            self.location = self.locations.add(at, function, inlined)
        elif directive == ".pragma":
            self.skip_to(";")
            self.advance()
        else:  # .section name { ... }
            self.advance()
            self.expect("{")
            while not self.accept("}"):
                if self.token.kind == "end":
                    raise self.error("a `.section` that never ends")
                self.advance()

    def attributes(self) -> None:
        """`.attribute(.managed)` and the like (PTX ISA, "Variable and Function Attribute Directive")."""
        while self.accept(".attribute"):
            depth = 0
            while True:
                text = self.advance().text
                depth += (text == "(") - (text == ")")
                if depth == 0:
                    break
                if self.token.kind == "end":
                    raise self.error("an `.attribute` that never ends")

    def variable(self, extern: bool) -> syntax.Variable:
        self.attributes()
        token = self.advance()
        space = token.text[1:]
        if token.text not in _SPACES:
            raise self.error(f"`{token.text}` is no state space of a variable", token)
        alignment, count = 0, 1
        if self.accept("["):  # a numbered constant bank
            self.integer()
            self.expect("]")
        self.attributes()
        if self.accept(".align"):
            alignment = self.integer() or -1
        vector = {".v2": 2, ".v4": 4, ".v8": 8}.get(self.token.text)
        if vector:
            self.advance()
        self.attributes()
        element = self.type_name()
        name = self.word()
        size = syntax.TYPE_BYTES[element] * (vector or 1)
        alignment = alignment or size
        while self.accept("["):
            count = 0 if self.token.text == "]" else count * self.constant()
            self.expect("]")
        initial = Initial()
        if self.accept("="):
            self.initializer(element, initial)
            if space not in ("global", "const"):
                raise self.error(f"a variable in .{space} has no initial value", token)
            if count and len(initial.data) > size * count:
                what = f"`{name}` has {size * count} bytes, its initial value {len(initial.data)}"
                raise self.error(what, token)
        self.expect(";")
        size = size * count or len(initial.data)
        limits.check_size(self.span_of(token), f"`{name}`", space, size, alignment)
        return syntax.Variable(
            name, space, alignment, size, token.line, extern, bytes(initial.data), tuple(initial.relocations)
        )  # fmt: skip

    def initializer(self, element: str, out: Initial, depth: int = 0) -> None:
        if depth > limits.MAX_NESTING:
            raise self.error(f"more than {limits.MAX_NESTING} braces in one another")
        if self.accept("{"):
            while not self.accept("}"):
                self.initializer(element, out, depth + 1)
                self.accept(",")
            return
        width = syntax.TYPE_BYTES[element]
        if self.token.kind == "word":
            self.relocation(width, out)
            return
        value = self.operand_number()
        bits = value.value
        if value.kind == "int" and element in ("f32", "f64"):
            raise self.error(f"an initial value of .{element} is a floating-point constant")
        if value.kind != "int" and element[0] in "us":
            raise self.error(f"an initial value of .{element} is an integer")
        if value.kind == "f64" and element == "f32":
            with np.errstate(over="ignore"):
                bits = int(np.uint64(bits & (2**64 - 1)).view(np.float64).astype(np.float32).view(np.uint32))
        out.data += (bits & ((1 << 8 * width) - 1)).to_bytes(width, "little")

    def relocation(self, width: int, out: Initial) -> None:
        """``name``, ``name + 4``, ``generic(name) + 4`` or ``mask(name)`` (PTX ISA, "Initializers")."""
        name, generic = self.word(), False
        if self.accept("("):
            if name not in ("generic", "mask"):
                raise self.error(f"`{name}(` is no operator of an initialiser")
            if name == "mask":
                raise self.error("the operator `mask()` is not supported")
            generic, name = True, self.word()
            self.expect(")")
        addend = 0
        while self.token.text in ("+", "-"):
            sign = -1 if self.advance().text == "-" else 1
            addend += sign * self.integer()
        out.relocations.append((len(out.data), name, addend, generic, width))
        out.data += bytes(width)

    def type_name(self) -> str:
        name = self.token.text[1:]
        if self.token.kind != "directive" or name not in syntax.TYPE_BYTES:
            raise self.error(f"{self.shown()} is no PTX type")
        self.advance()
        return name

    def register_type(self) -> str:
        token, name = self.token, self.type_name()
        if name not in syntax.REGISTER_TYPES:
            raise self.error(
                f"no register has the type `.{name}`: declare it .b{8 * syntax.TYPE_BYTES[name]}", token
            )
        return name

    # -- entries and functions
    def entry(self) -> syntax.Entry | None:
        """An entry; None for a declaration without a body.

        An entry with an unsupported construct is kept with its error, which is raised when it is launched.
        """
        start = self.position
        line = self.expect(".entry").line
        self.attributes()
        name = self.word()
        try:
            parameters = self.parameters() if self.accept("(") else ()
            directives: dict[str, tuple[int, ...]] = {}
            while self.token.text != "{":
                if self.accept(";"):
                    return None
                self.directive(directives)
            if {"maxntid", "reqntid"} <= directives.keys():
                raise self.error("`.maxntid` and `.reqntid` do not stand together")
            if self.only not in (None, name) and self.passed_body():
                return syntax.Entry(name, parameters, directives, syntax.Body(), line)
            return syntax.Entry(name, parameters, directives, self.body(), line)
        except PtxSyntax as error:
            self.skip_body(start, error)
            return syntax.Entry(name, (), {}, syntax.Body(), line, error)

    def directive(self, directives: dict[str, tuple[int, ...]]) -> None:
        """A performance-tuning or cluster directive between the parameters and the body."""
        token = self.advance()
        if token.text not in _ENTRY_DIRECTIVES:
            raise self.error(f"`{token.text}` is no directive of an entry", token)
        numbers: list[int] = []
        if token.text == ".pragma":
            self.skip_to(";")
            self.advance()
        while self.token.kind in ("int", "string") or self.token.text == ",":
            if self.token.kind == "int":
                numbers.append(self.integer())
            else:
                self.advance()
        directives[token.text[1:]] = tuple(numbers)

    def function(self) -> syntax.Function:
        start = self.position
        line = self.expect(".func").line
        name = self.function_name()
        try:
            self.attributes()
            results = self.parameters() if self.accept("(") else ()
            self.word()
            parameters = self.parameters() if self.accept("(") else ()
            while self.token.text not in ("{", ";"):
                if self.token.text == ".noinline":
                    self.advance()
                else:
                    self.directive({})
            if self.accept(";"):
                return syntax.Function(name, results, parameters, None, line)
            return syntax.Function(name, results, parameters, self.body((*results, *parameters)), line)
        except PtxSyntax as error:
            self.skip_body(start, error)
            return syntax.Function(name, (), (), None, line, error)

    def function_name(self) -> str:
        """The name of the function that starts here, wherever its results end."""
        at, depth = self.position, 0
        while self.tokens[at].kind != "end":
            text = self.tokens[at].text
            depth += (text == "(") - (text == ")")
            if depth == 0 and self.tokens[at].kind == "word":
                return self.tokens[at].text
            at += 1
        raise self.error("a `.func` without a name")

    def body(self, formals: tuple[syntax.Parameter, ...] = ()) -> syntax.Body:
        from tilemma.machine.body import BodyParser

        return BodyParser(self, formals).parse()

    def passed_body(self) -> bool:
        """Move past the body that begins here; whether it has an end, else the position stays."""
        tokens, at, depth = self.tokens, self.position, 0
        while True:
            kind, text = tokens[at][:2]
            if kind == "end" or text in _NOT_IN_BODIES:
                return False
            at += 1
            if kind == "punct":
                depth += (text == "{") - (text == "}")
                if depth == 0:
                    self.position = at
                    return True

    def skip_body(self, start: int, error: PtxSyntax) -> None:
        """Move past the body that starts at token ``start``; raises ``error`` where the body has no end."""
        self.position, depth = start, 0
        while True:
            token = self.tokens[self.position]
            if token.kind == "end" or (depth > 0 and token.text in (".entry", ".func")):
                raise error
            self.position += 1
            depth += (token.text == "{") - (token.text == "}")
            if depth == 0 and token.text in ("}", ";") and token.kind == "punct":
                return

    def parameters(self) -> tuple[syntax.Parameter, ...]:
        """Parameters up to the closing bracket."""
        found: list[syntax.Parameter] = []
        offset = 0
        while not self.accept(")"):
            token = self.advance()
            if token.text not in (".param", ".reg"):
                raise self.error(f"expected `.param`, found `{token.text}`", token)
            alignment, count = 0, 1
            self.attributes()
            if self.accept(".align"):
                alignment = self.integer() or -1
            element = self.type_name()
            while self.token.text in _POINTER_ATTRIBUTES:
                if self.advance().text == ".align":
                    self.integer()
            name = self.word()
            if name != "_" and any(known.name == name for known in found):
                raise self.error(f"the parameter `{name}` is declared twice", token)
            while self.accept("["):
                count *= 0 if self.token.text == "]" else self.constant()
                self.expect("]")
            size = syntax.TYPE_BYTES[element] * count
            alignment = alignment or syntax.TYPE_BYTES[element]
            limits.check_size(self.span_of(token), f"`{name}`", "param", max(size, offset + size), alignment)
            offset = -(-offset // alignment) * alignment
            register = syntax.Register(f"{name}@0", element) if token.text == ".reg" else None
            found.append(syntax.Parameter(name, element, alignment, size, offset, token.line, register))
            offset += size
            if not self.accept(",") and self.token.text != ")":
                raise self.error(f"expected `,` or `)`, found {self.shown()}")
        return tuple(found)

    # -- constants
    def constant(self) -> int:
        """The value of an integer expression."""
        return constants.expression(self)

    def operand_number(self) -> syntax.Immediate:
        if not constants.is_float(self):
            return syntax.Immediate(constants.expression(self))
        negative = self.accept("-")
        text = self.advance().text
        if text[:2] in ("0f", "0F"):
            return syntax.Immediate(int(text[2:], 16) ^ (0x80000000 if negative else 0), "f32")
        if text[:2] in ("0d", "0D"):
            return syntax.Immediate(int(text[2:], 16) ^ (1 << 63 if negative else 0), "f64")
        value_f = -float(text) if negative else float(text)
        if not math.isfinite(value_f):
            raise self.error(f"`{text}` is beyond f64")
        return syntax.Immediate(struct.unpack("<Q", struct.pack("<d", value_f))[0], "f64")


def parse(text: str, name: str = "<ptx>", *, only: str | None = None) -> syntax.Module:
    """The module that ``text`` spells; PtxSyntax, with the line, where it is not PTX.

    An entry or function with an unsupported construct stays in the module with its error (``refused``).  With
    ``only``, the bodies of other entries are passed over unless a call is indirect: it may reach each function
    whose address some entry takes.
    """
    module = Parser(text, name, only).module()
    if only is None or not module.functions:
        return module
    bodies = [*(e.body for e in module.entries.values()), *(f.body for f in module.functions.values())]
    if any(_calls_indirectly(ins) for body in bodies if body is not None for ins in body.instructions):
        return Parser(text, name).module()
    return module


def _calls_indirectly(instruction: syntax.Instruction) -> bool:
    """Whether it calls the function whose address a register holds."""
    return instruction.parts[0] == "call" and any(isinstance(x, syntax.Register) for x in instruction.operands)
