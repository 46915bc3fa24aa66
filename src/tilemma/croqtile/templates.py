"""Templates of kernels: an explicit instantiation is a kernel with the parameters' names replaced.

``template <typename T, int N = 4> __co__ void f(T [N] x) { ... }`` and ``template __co__ f<f32>;`` give the kernel
``f_f32``.  The words are replaced before the kernel is parsed, as C++ instantiates a template from its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from tilemma.croqtile.device_functions import TYPES
from tilemma.croqtile.scope import Redefinition
from tilemma.croqtile.tokens import Token
from tilemma.errors import CompileError, Note, Span
from tilemma.records import record


class TemplateInstance(CompileError):
    code = "template-instance"
    found = "{problem}"
    expected = (
        "`template __co__ name<arguments>;`, an argument for each parameter of the template without a default"
    )
    fix = "{remedy}"


@record
class Template:
    """``head``: the tokens from ``template`` to ``>``.  ``kernel``: those of the kernel behind it."""

    head: tuple[Token, ...]
    kernel: tuple[Token, ...]

    @property
    def name(self) -> str:
        return self.kernel[_named(self.kernel)].text


def _named(kernel: Sequence[Token]) -> int:
    """The index of the kernel's name."""
    words = enumerate(pairwise(kernel))
    return next((i for i, (a, b) in words if a.kind == "name" and b.text == "("), 0)


def _instance_name(tokens: Sequence[Token]) -> tuple[Token, int]:
    """The name of the template in ``__co__ f<f32>;``, and where its arguments begin."""
    at = next((i for i, t in enumerate(tokens) if t.text in ("<", ";")), 1)
    return tokens[at - 1], at


def check_names(kernels: Sequence[Sequence[Token]], instances: Sequence[Sequence[Token]]) -> None:
    """Redefinition for an instance named like another kernel; the last kernels are those of ``instances``."""
    places = [k[_named(k)].span for k in kernels[: len(kernels) - len(instances)]]
    places += [_instance_name(tokens)[0].span for tokens in instances]
    first: dict[str, Span] = {}
    for i, (kernel, place) in enumerate(zip(kernels, places, strict=True)):
        name = kernel[_named(kernel)].text
        if i + len(instances) >= len(kernels) and name in first:
            raise Redefinition(
                place,
                where="file",
                name=name,
                remedy="remove equal instances, write each argument as one name or number, or rename the kernel",
                notes=[Note("the first kernel of that name", first[name])],
            )
        first.setdefault(name, place)


def _listed(tokens: Sequence[Token]) -> list[list[Token]]:
    """The parts, divided by commas, between the first ``<`` and the last ``>``."""
    first = next((i for i, t in enumerate(tokens) if t.text == "<"), len(tokens))
    last = max((i for i, t in enumerate(tokens) if t.text == ">"), default=first)
    parts: list[list[Token]] = [[]]
    depth = 0
    for t in tokens[first + 1 : last]:
        depth += (t.text in ("(", "[", "<")) - (t.text in (")", "]", ">"))
        if t.text == "," and not depth:
            parts.append([])
        else:
            parts[-1].append(t)
    return [p for p in parts if p]


def instantiated(templates: Sequence[Template], tokens: Sequence[Token]) -> tuple[Token, ...]:
    """The kernel that ``tokens`` name, ``__co__ f<f32>;``; TemplateInstance."""
    name, at = _instance_name(tokens)
    found = next((x for x in templates if x.name == name.text), None)
    if found is None:
        known = ", ".join(f"`{x.name}`" for x in templates) or "none"
        raise TemplateInstance(
            name.span,
            problem=f"`{name.text}` is no template of a kernel",
            remedy=f"name one of this file: {known}",
        )
    given, words = _listed(tokens[at:]), _parameters(found)
    needed = sum(default is None for _, default in words)
    if not needed <= len(given) <= len(words):
        form = ", ".join(word for word, _ in words)
        raise TemplateInstance(
            name.span,
            problem=f"`{name.text}` with {len(given)} arguments of {len(words)}",
            remedy=f"write `template __co__ {name.text}<{form}>;`",
        )
    values = {word: given[i] if i < len(given) else list(default or ()) for i, (word, default) in enumerate(words)}
    suffix = "".join(f"_{''.join(c if c.isalnum() else '_' for t in g for c in t.text)}" for g in given)
    body = list(found.kernel)
    place = _named(body)
    body[place] = replace(body[place], text=name.text + suffix)
    return tuple(_decided(_replaced(body, values)))


def _parameters(template: Template) -> list[tuple[str, list[Token] | None]]:
    """The names of the parameters, with their defaults; TemplateInstance for one without a name."""
    found: list[tuple[str, list[Token] | None]] = []
    for part in _listed(template.head):
        equals = next((i for i, t in enumerate(part) if t.text == "="), len(part))
        words = [t for t in part[:equals] if t.kind == "name"]
        if len(words) < 2 or any(t.text in ("<", "...") for t in part[:equals]):
            raise TemplateInstance(
                part[0].span,
                problem="a parameter of a template that is neither a type nor a number",
                remedy="write `typename T` or `int N`",
            )
        found.append((words[-1].text, part[equals + 1 :] if equals < len(part) else None))
    return found


def _replaced(tokens: Sequence[Token], values: dict[str, list[Token]]) -> list[Token]:
    made: list[Token] = []
    for token in tokens:
        value = values.get(token.text) if token.kind == "name" and not (made and made[-1].text == ".") else None
        if value is None:
            made.append(token)
            continue
        text = [replace(t, span=token.span, row=token.row, glued=i > 0) for i, t in enumerate(value)]
        if len(text) > 1:
            text = [_mark(token, "("), *text, _mark(token, ")")]
        made += text
    return made


def _mark(at: Token, text: str) -> Token:
    return replace(at, kind="op", text=text)


def _decided(tokens: Sequence[Token]) -> list[Token]:
    """``if constexpr`` as ``if``, and ``__is_same<A, B>`` as its truth."""
    made: list[Token] = []
    i = 0
    while i < len(tokens):
        token = tokens[i]
        names = [t.text for t in tokens[i + 1 : i + 6]]
        if token.text == "__is_same" and len(names) == 5 and names[::2] == ["<", ",", ">"]:
            same = TYPES.get(names[1], names[1]) == TYPES.get(names[3], names[3])
            made.append(replace(token, text="true" if same else "false"))
            i += 6
            continue
        if token.text != "constexpr" or not made or made[-1].text != "if":
            made.append(token)
        i += 1
    return made
