"""Finding the kernels of a file: each `__co__` function, preprocessed; the host C++ around them is skipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import pairwise

from tilemma.croqtile.preprocess import Macro, Preprocessor
from tilemma.croqtile.tokens import Token
from tilemma.croqtile.words import DEVICE_MARKS
from tilemma.errors import CompileError, Note, Span, register_source
from tilemma.ir.refusals import NoKernel, WrongValue
from tilemma.records import record


class UnfinishedKernel(CompileError):
    code = "unfinished-kernel"
    found = "a kernel {problem}"
    expected = "`__co__ type name(parameters) {{ ... }}`"
    fix = "{remedy}"


@record
class Extracted:
    """``kernels``: for each the expanded tokens from ``__co__`` to its closing brace.

    ``functions``: those of `__device__` functions.  ``templates``: the word ``template`` before a kernel, by the
    kernel's place.  ``constants``: the object-like macros defined at the end of the file, numbers as numbers.
    """

    kernels: tuple[tuple[Token, ...], ...]
    functions: tuple[tuple[Token, ...], ...]
    notes: tuple[Note, ...]
    constants: Mapping[str, object]
    templates: Mapping[int, Token]


@record(frozen=False, eq=False)
class _Finder:
    pre: Preprocessor
    kernels: list[tuple[Token, ...]] = field(default_factory=list)
    pending: list[Token] = field(default_factory=list)
    current: list[Token] | None = None
    depth: int = 0
    host: list[Span] = field(default_factory=list)
    host_rows: set[int] = field(default_factory=set)
    # The tokens of host code since the end of its last statement.
    recent: list[Token] = field(default_factory=list)
    start: Token | None = None
    # The tokens of the device function that is being read, and how many of them are expanded.
    device: list[Token] | None = None
    device_depth: int = 0
    functions: list[tuple[Token, ...]] = field(default_factory=list)
    template: Token | None = None
    # The tokens from `template` on that stand before a kernel, by its place; the instantiations, and whether one
    # is being read.
    templates: dict[int, list[Token]] = field(default_factory=dict)
    instances: list[tuple[Token, ...]] = field(default_factory=list)
    instantiating: bool = False

    def take(self, token: Token) -> None:
        if self.current is None:
            self.in_function(token)
            if token.text != "__co__" or token.kind != "name":
                self.recent.append(token)
                if token.text in (";", "{", "}"):
                    self.skip(self.recent)
                    self.template = None
                elif token.text == "template":
                    self.template = token
                return
            if self.template is not None:
                head = self.recent[next(i for i, t in enumerate(self.recent) if t is self.template) :]
                self.instantiating = len(head) == 1
                if not self.instantiating:
                    self.templates[len(self.kernels)] = head
                self.template = None
            self.current, self.depth, self.start = [], 0, token
            first = _attributes_start(self.recent)
            _check_attributes(self.recent[:first])
            self.pending += self.recent[first:]
            self.skip(self.recent[:first])
        self.pending.append(token)
        if token.kind != "op":
            return
        if token.text == "{":
            self.depth += 1
        elif token.text == "}":
            self.depth -= 1
            if self.depth <= 0:
                self._finish()
        elif token.text == ";" and self.depth == 0 and self.instantiating:
            self._finish()
        elif token.text == ";" and self.depth == 0:
            raise UnfinishedKernel(
                token.span, problem="without a body", remedy="give it a body: kernels are not declared beforehand"
            )

    def in_function(self, token: Token) -> None:
        """Collect ``token`` where it belongs to a device function."""
        if self.device is None:
            if token.kind == "name" and token.text in DEVICE_MARKS:
                before = [t for t in self.recent if self.template is not None] + [token]
                first = next((i for i, t in enumerate(before) if t.text == "template"), -1)
                self.device, self.device_depth = before[first:], 0
            return
        self.device.append(token)
        self.device_depth += (token.text == "{") - (token.text == "}") if token.kind == "op" else 0
        if token.kind != "op" or self.device_depth > 0:
            return
        if token.text == "}":
            self.end_function()
        elif token.text == ";":
            self.device = None

    def end_function(self) -> None:
        assert self.device is not None
        try:
            self.functions.append(tuple(self.pre.expand(self.device)))
        except CompileError:
            self.functions.append(tuple(self.device))
        self.device = None

    def skip(self, tokens: Sequence[Token]) -> None:
        """Count ``tokens`` as host code."""
        self.host += [token.span for token in tokens[: not self.host]]
        self.host_rows.update(token.row for token in tokens)
        self.recent = []

    def flush(self) -> None:
        if self.current is not None:
            self.current += self.pre.expand(self.pending)
            self.pending = []

    def _finish(self) -> None:
        self.flush()
        assert self.current is not None
        (self.instances if self.instantiating else self.kernels).append(tuple(self.current))
        self.current, self.instantiating = None, False

    def resolve(self) -> tuple[list[tuple[Token, ...]], dict[int, Token]]:
        """The kernels, with instantiations for their templates, and the word before other templates."""
        heads = {i: tuple(self.pre.expand(head)) for i, head in self.templates.items()}
        if not self.instances:
            return self.kernels, {i: head[0] for i, head in heads.items()}
        from tilemma.croqtile.templates import Template, check_names, instantiated  # most files have none

        templates = {i: Template(head, self.kernels[i]) for i, head in heads.items()}
        made = [instantiated(list(templates.values()), tokens) for tokens in self.instances]
        used = {a.text for tokens in self.instances for a, b in pairwise(tokens) if b.text in ("<", ";")}
        kernels: list[tuple[Token, ...]] = []
        rest: dict[int, Token] = {}
        for i, kernel in enumerate(self.kernels):
            if i in templates and templates[i].name in used:
                continue
            if i in templates:
                rest[len(kernels)] = templates[i].head[0]
            kernels.append(kernel)
        kernels += made
        check_names(kernels, self.instances)
        return kernels, rest


def _check_attributes(before: Sequence[Token]) -> None:
    """Refuse ``before``, the text in front of a kernel and its attributes, if it has settings that do not end."""
    for a, b, c in zip(before, before[1:], before[2:], strict=False):
        if (a.text, b.text, c.text) == ("[", "[", "pipeline"):
            raise WrongValue(
                c.span,
                what="`[[pipeline(...)]]`",
                got="no `]]` in front of `__co__`",
                wanted="settings in `[[` and `]]`",
                fix_text="write `[[pipeline(stages=4)]] __co__ void ...`",
            )


def _attributes_start(tokens: Sequence[Token]) -> int:
    """The place of the first `[[...]]` at the end of ``tokens``; their number if there are none."""
    first = at = len(tokens)
    depth = 0
    while at and (depth or tokens[at - 1].text == "]"):
        at -= 1
        depth += (tokens[at].text == "]") - (tokens[at].text == "[")
        if not depth:
            if at + 1 >= first or tokens[at + 1].text != "[":
                break
            first = at
    return first


def extract(text: str, file: str, defines: Mapping[str, object]) -> Extracted:
    """The kernels in ``text``; NoKernel, UnfinishedKernel and the errors of the preprocessor."""
    register_source(file, text)
    pre = Preprocessor(file)
    pre.define_outside(defines)
    finder = _Finder(pre)
    pre.run(text, finder.take, finder.flush)
    finder.skip(finder.recent)
    if finder.current is not None:
        assert finder.start is not None
        problem, remedy = "whose `{` is never closed", "add the missing `}`"
        if not finder.depth:
            problem, remedy = "without a body", "give it one: `{ ... }` after the parameters"
        raise UnfinishedKernel(finder.start.span, problem=problem, remedy=remedy)
    if not finder.kernels:
        fix = "write `__co__ void name(...) { ... }`"
        raise NoKernel(
            Span(file, 1, 1, 1, 1),
            file=file,
            problem="has no kernel" if text.strip() else "is empty",
            wanted="at least one function that begins with `__co__`",
            fix_text=f"{fix}; check the conditions around it" if text.strip() else fix,
        )
    pre.check_outside()
    notes = list(pre.notes)
    if finder.host:
        lines = len(finder.host_rows)
        notes.append(Note(f"{lines} line{'s' * (lines > 1)} of host code are skipped", finder.host[0]))
    constants = {m.name: _value(m) for m in pre.macros.values() if m.params is None}
    kernels, templates = finder.resolve()
    return Extracted(tuple(kernels), tuple(finder.functions), tuple(notes), constants, templates)


def _value(macro: Macro) -> object:
    if len(macro.body) == 1 and len(macro.body[0].text) < 20:
        token = macro.body[0]
        if token.kind == "int":
            return int(token.text.rstrip("uUlL"), 0 if token.text[:2] in ("0x", "0X") else 10)
        if token.kind == "float":
            return float(token.text.rstrip("fF"))
    return " ".join(t.text for t in macro.body)
