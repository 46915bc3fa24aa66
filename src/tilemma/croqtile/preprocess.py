"""The preprocessor: macros and conditional sections, over tokens that keep their places.

It runs over the whole file, since host code and kernels share macros, but expands only inside kernels.
``#include`` is not followed and no file is read.  Expansion is bounded: a macro that reaches itself, or too
many tokens, is an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace

from tilemma.croqtile.tokens import Token, join, tokens
from tilemma.errors import CompileError, Note, Span, WrongArgument, described, nearest, register_source
from tilemma.records import record

MAX_EXPANDED = 200_000
MAX_ARGUMENT_DEPTH = 50

CONDITIONALS = ("if", "ifdef", "ifndef", "elif", "else", "endif")
DIRECTIVES = (*CONDITIONALS, "define", "undef", "error", "include", "pragma", "warning", "line")


class UnknownDirective(CompileError):
    code = "unknown-directive"
    found = "`#{name}` is not a directive"
    expected = "one of " + ", ".join(f"`#{d}`" for d in DIRECTIVES)
    fix = "{suggestion}"


class BadDirective(CompileError):
    code = "bad-directive"
    found = "`#{name}` {problem}"
    expected = "{form}"
    fix = "write {form}"


class UnbalancedConditional(CompileError):
    code = "unbalanced-conditional"
    found = "{problem}"
    expected = "`#if`, `#ifdef` or `#ifndef`, then `#elif`s, at most one `#else`, and `#endif`"
    fix = "{remedy}"


class ErrorDirective(CompileError):
    code = "error-directive"
    found = "the source refuses this configuration: {text}"
    expected = "definitions for which this `#error` is not reached"
    fix = "change the definitions that its conditions test (`defines=`, `--define`)"


class MacroRecursion(CompileError):
    code = "macro-recursion"
    found = "macro `{name}` expands to itself"
    expected = "macros whose expansion ends"
    fix = "rename the macro, or the names in its body"


class MacroArguments(CompileError):
    code = "macro-arguments"
    found = "macro `{name}` got {got} arguments"
    expected = "{want} arguments: `{form}`"
    fix = "call it as `{form}`"


class MacroExplosion(CompileError):
    code = "macro-explosion"
    found = "expanding `{name}` goes beyond {limit} {what}"
    expected = "at most {limit} {what} from the macros of a file"
    fix = "use loops (`foreach`) where a macro repeats text"


class UnknownDefine(CompileError):
    code = "unknown-define"
    found = "`{name}` is defined from outside, but `{file}` does not mention it"
    expected = "a name that the file uses"
    fix = "{suggestion}"


# The name of `...` among the parameters of a macro in its body (C23 6.10.5).
VARIADIC = "__VA_ARGS__"


@record
class Macro:
    """``params`` None: object-like.  ``fixed``: defined from outside, which the file cannot change."""

    name: str
    params: tuple[str, ...] | None
    body: tuple[Token, ...]
    span: Span
    fixed: bool = False

    @property
    def variadic(self) -> bool:
        return bool(self.params) and self.params is not None and self.params[-1] == VARIADIC

    @property
    def form(self) -> str:
        shown = ("..." if p == VARIADIC else p for p in self.params or ())
        return self.name if self.params is None else f"{self.name}({', '.join(shown)})"


def _gathered(arguments: list[list[Token]], wanted: int, commas: list[Token]) -> list[list[Token]]:
    """The arguments with all from position ``wanted - 1`` on as one; it may be empty."""
    first = arguments[: wanted - 1]
    rest: list[Token] = []
    for n, argument in enumerate(arguments[wanted - 1 :], wanted - 1):
        rest += [*([commas[n - 1]] if n >= wanted else []), *argument]
    return [*first, rest] if len(first) == wanted - 1 else arguments


@record(frozen=False, eq=False)
class _Section:
    """A conditional section: ``active`` now, ``taken`` whether a branch was, ``live`` whether it may be."""

    span: Span
    live: bool
    active: bool
    taken: bool
    otherwise: bool = False


@record(frozen=False, eq=False)
class Preprocessor:
    """Feeds the tokens of a file, line by line, to the extraction of kernels.

    ``notes`` collects remarks on the way.  ``expand`` may be called with any tokens met so far.
    """

    file: str
    macros: dict[str, Macro] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    _sections: list[_Section] = field(default_factory=list)
    _budget: int = MAX_EXPANDED

    def define_outside(self, defines: Mapping[str, object]) -> None:
        """Macros given by the caller, which override definitions in the file."""
        for name, value in defines.items():
            if isinstance(value, int) and value.bit_length() > 64:
                wanted = "a value of at most 64 bits"
                raise WrongArgument(function="load", name=name, got=described(value), wanted=wanted)
            text = str(int(value)) if isinstance(value, int) else str(value)
            source = f"<define {name}={text[:40]}>"
            register_source(source, text)
            body = tuple(tokens(text, source))
            self.macros[name] = Macro(name, None, body, Span(source, 1, 1, 1, len(text) + 1), fixed=True)

    def check_outside(self) -> None:
        """UnknownDefine for a macro given from outside that the file never mentions."""
        for m in self.macros.values():
            if m.fixed and m.name not in self.seen:
                near = nearest(m.name, sorted(self.seen))
                raise UnknownDefine(
                    name=m.name,
                    file=self.file,
                    suggestion=f"did you mean `{near}`?" if near else "remove the definition",
                )

    @property
    def known(self) -> Mapping[str, Macro]:
        """The macros defined here and now."""
        return self.macros

    @property
    def active(self) -> bool:
        # A section is active only where those around it are.
        return not self._sections or self._sections[-1].active

    def run(self, text: str, take: Callable[[Token], None], flush: Callable[[], None]) -> None:
        """Call ``take`` for each token in an active section.

        ``flush`` is called before a directive changes the macros: the tokens taken so far are expanded with the
        old.
        """
        row: list[Token] = []
        for token in tokens(text, self.file):
            if token.kind == "name":
                self.seen.add(token.text)
            if row and row[0].row != token.row:
                self._row(row, take, flush)
                row = []
            row.append(token)
        if row:
            self._row(row, take, flush)
        if self._sections:
            raise UnbalancedConditional(
                self._sections[-1].span, problem="a conditional section that does not end", remedy="add `#endif`"
            )

    def _row(self, row: list[Token], take: Callable[[Token], None], flush: Callable[[], None]) -> None:
        if row[0].text == "#" and row[0].first and len(row) > 1 and row[1].kind == "name":
            name = row[1].text
            if name in CONDITIONALS:
                self._conditional(name, row)
            elif self.active and self._is_directive(name, row):
                flush()
                self._directive(name, row)
            elif self.active:
                for token in row:
                    take(token)
        elif self.active:
            for token in row:
                take(token)

    @staticmethod
    def _is_directive(name: str, row: list[Token]) -> bool:
        """``# p`` at the start of a line may be the operator; a directive's name is glued or known."""
        if name in DIRECTIVES:
            return True
        near = nearest(name, DIRECTIVES)
        if near is not None and len(name) > 2 and row[1].glued and len(row) > 2 and row[2].kind == "name":
            raise UnknownDirective(
                join(row[0].span, row[1].span), name=name, suggestion=f"did you mean `#{near}`?"
            )
        return False

    # ---- directives --------------------------------------------------------------------------------------

    def _directive(self, name: str, row: list[Token]) -> None:
        rest = row[2:]
        if name == "define":
            self._define(row[1], rest)
        elif name == "undef":
            if len(rest) != 1 or rest[0].kind != "name":
                raise BadDirective(row[1].span, name=name, problem="needs one name", form="`#undef NAME`")
            if not self._overridden(rest[0]):
                self.macros.pop(rest[0].text, None)
        elif name == "error":
            text = " ".join(t.text for t in rest) or "`#error`"
            raise ErrorDirective(join(row[0].span, row[-1].span), text=text)

    def _define(self, at: Token, rest: list[Token]) -> None:
        form = "`#define NAME value` or `#define NAME(a, b) value`"
        if not rest or rest[0].kind != "name":
            raise BadDirective(at.span, name="define", problem="needs a name", form=form)
        head, body = rest[0], rest[1:]
        params: tuple[str, ...] | None = None
        if body and body[0].text == "(" and body[0].glued:
            close = next((i for i, t in enumerate(body) if t.text == ")"), None)
            inner = body[1:close]
            if inner and inner[-1].text == "...":
                inner = [*inner[:-1], replace(inner[-1], kind="name", text=VARIADIC)]
            names = inner[::2]
            if (
                close is None
                or any(t.kind != "name" for t in names)
                or any(t.text != "," for t in inner[1::2])
                or (inner and len(inner) % 2 == 0)
                or len({t.text for t in names}) != len(names)
            ):
                raise BadDirective(body[0].span, name="define", problem="has malformed parameters", form=form)
            params = tuple(t.text for t in names)
            body = body[close + 1 :]
        if not self._overridden(head):
            self.macros[head.text] = Macro(head.text, params, tuple(body), head.span)

    def _overridden(self, name: Token) -> bool:
        """Whether a definition of the caller overrides that of the file for ``name``."""
        m = self.macros.get(name.text)
        if m is None or not m.fixed:
            return False
        value = " ".join(t.text for t in m.body)
        self.notes.append(Note(f"`{name.text}` is {value} from outside; this line is not used", name.span))
        return True

    def _conditional(self, name: str, row: list[Token]) -> None:
        span = join(row[0].span, row[1].span)
        rest = row[2:]
        if name in ("if", "ifdef", "ifndef"):
            live = self.active
            holds = live and self._holds(name, row[1], rest)
            self._sections.append(_Section(span, live, holds, holds))
            return
        if not self._sections:
            raise UnbalancedConditional(
                span,
                problem=f"`#{name}` without an `#if`",
                remedy=f"remove it, or open a section before `#{name}`",
            )
        section = self._sections[-1]
        if name == "endif":
            self._sections.pop()
            return
        if section.otherwise:
            raise UnbalancedConditional(span, problem=f"`#{name}` after `#else`", remedy="put `#else` last")
        if name == "else":
            section.otherwise = True
            section.active = section.live and not section.taken
        else:
            section.active = False
            section.active = section.live and not section.taken and self._holds("if", row[1], rest)
        section.taken = section.taken or section.active

    def _holds(self, name: str, at: Token, rest: list[Token]) -> bool:
        if name == "if":
            if not rest:
                raise BadDirective(at.span, name="if", problem="needs a condition", form="`#if EXPRESSION`")
            from tilemma.croqtile.condition import evaluate  # most files have none

            return evaluate(rest, self)
        if len(rest) != 1 or rest[0].kind != "name":
            raise BadDirective(at.span, name=name, problem="needs one name", form=f"`#{name} NAME`")
        return (rest[0].text in self.macros) == (name == "ifdef")

    # ---- expansion ---------------------------------------------------------------------------------------

    def expand(self, source: Iterable[Token], depth: int = 0) -> list[Token]:
        """``source`` with macros replaced (Prosser's algorithm: each token has its hide set)."""
        queue = deque(source)
        out: list[Token] = []
        while queue:
            token = queue.popleft()
            macro = self.macros.get(token.text) if token.kind == "name" else None
            if macro is None or (macro.params is not None and not (queue and queue[0].text == "(")):
                out.append(token)
                continue
            if macro.name in token.hidden:
                if [t.text for t in macro.body] == [macro.name]:
                    out.append(token)
                    continue
                raise MacroRecursion(token.span, name=macro.name, notes=[Note("defined here", macro.span)])
            span, values = token.span, {}
            if macro.params is not None:
                arguments, close = self._arguments(token, macro, queue)
                span = join(span, close) if close.file == span.file else span
                if depth >= MAX_ARGUMENT_DEPTH:
                    raise MacroExplosion(
                        token.span, name=macro.name, limit=MAX_ARGUMENT_DEPTH, what="nested macro calls"
                    )
                values = {p: self.expand(a, depth + 1) for p, a in zip(macro.params, arguments, strict=True)}
            hidden = token.hidden | {macro.name}
            body = self._substitute(macro, values, span, hidden)
            self._budget -= len(body)
            if self._budget < 0:
                raise MacroExplosion(
                    token.span,
                    name=macro.name,
                    limit=MAX_EXPANDED,
                    what="tokens",
                    notes=[Note("defined here", macro.span)],
                )
            queue.extendleft(reversed(body))
        return out

    @staticmethod
    def _substitute(
        macro: Macro, values: Mapping[str, Sequence[Token]], span: Span, hidden: frozenset[str]
    ) -> list[Token]:
        """The body with arguments in place of parameters; its own tokens get the position of the macro's use."""
        body: list[Token] = []
        for t in macro.body:
            value = values.get(t.text) if t.kind == "name" else None
            if value is None:
                body.append(Token(t.kind, t.text, span, t.row, t.glued, False, hidden))
            else:
                body.extend(
                    Token(v.kind, v.text, v.span, v.row, v.glued if i else t.glued, False, v.hidden | hidden)
                    for i, v in enumerate(value)
                )
        return body

    @staticmethod
    def _arguments(name: Token, macro: Macro, queue: deque[Token]) -> tuple[list[list[Token]], Span]:
        """The arguments of a call, taken from ``queue``, and the position of its closing parenthesis."""
        assert macro.params is not None
        queue.popleft()
        arguments: list[list[Token]] = [[]]
        commas: list[Token] = []
        depth = 0
        close: Token | None = None
        while queue:
            t = queue.popleft()
            if t.text == ")" and depth == 0:
                close = t
                break
            if t.text == "," and depth == 0:
                arguments.append([])
                commas.append(t)
                continue
            depth += (t.text in "([{" and t.kind == "op") - (t.text in ")]}" and t.kind == "op")
            arguments[-1].append(t)
        if not macro.params and arguments == [[]]:
            arguments = []
        if macro.variadic:
            arguments = _gathered(arguments, len(macro.params), commas)
        if close is None or len(arguments) != len(macro.params):
            got = "no `)` after its" if close is None else str(len(arguments))
            raise MacroArguments(
                name.span,
                name=macro.name,
                got=got,
                want=len(macro.params),
                form=macro.form,
                notes=[Note("defined here", macro.span)],
            )
        return arguments, close.span
