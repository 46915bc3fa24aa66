"""The parser: from a kernel's tokens to its syntax tree, and the texts of syntax errors."""

from __future__ import annotations

from collections.abc import Sequence

from tilemma.croqtile import ast
from tilemma.croqtile.c_spellings import c_spelling
from tilemma.croqtile.lr import Unexpected, recognise
from tilemma.croqtile.tables import tables
from tilemma.croqtile.tokens import Token
from tilemma.croqtile.tree import build_tree
from tilemma.croqtile.words import FOREIGN, NAMES, OPERATORS, OWN_TYPES, WORDS, terminal_of
from tilemma.errors import CompileError, Note, Span, nearest
from tilemma.ir.builder import element_type
from tilemma.ir.constructs import CHOICES

# The nesting depth that every later stage supports by recursion.  Kernels people write nest some 25 deep.
MAX_NESTING = 80
MAX_TOKENS = 200_000

# How the statements are written that have a head of their own, by the terminal of their first word.
_FORMS = {
    "PARALLEL": "`parallel p by 4 : block { ... }` or `parallel {i, j} by [4, 8] : thread { ... }`",
    "FOREACH": "`foreach k in 4 { ... }`; after `with k in 8`, for a part of its values, `foreach k(1:) { ... }`",
    "WITH": "`with k in 8 { ... }` or `with {i, j} in [8, 4] { ... }`",
    "INTHREADS": "`inthreads (p == 0) { ... }` or `inthreads.async (p == 0) { ... }`",
    "WHILE": "`while (x < 4) { ... }`",
    "IF": "`if (x < 4) { ... } else { ... }`",
    "APPLY": "`apply {i, j} in c.span { ... }`",
}
_PARENTHESISED = ("INTHREADS", "WHILE", "IF")
_STATEMENT_WORDS = ("DMA", "TMA", "MMA", "WAIT", "TRIGGER", "ASSERT", "RETURN", "FRAG", "STORAGE", "MUTABLE")
# Terminals that together mean that a statement, or an expression, may begin.
_STATEMENT = {"PARALLEL", "FOREACH", "MUTABLE"}
_EXPRESSION = {"NAME", "INT", "FLOAT", "WHOLE"}


class SyntaxProblem(CompileError):
    code = "syntax"
    found = "{found_text}"
    expected = "{expected_text}"
    fix = "{remedy}"


class BadToken(CompileError):
    code = "bad-token"
    found = "{what}"
    expected = "{wanted}"
    fix = "{remedy}"


class TooComplex(CompileError):
    code = "too-complex"
    found = "a kernel with {got} {what}"
    expected = "at most {limit}"
    fix = "{remedy}"


def parse(tokens: Sequence[Token]) -> ast.Function:
    """The syntax tree of one kernel's tokens; SyntaxProblem, BadToken, NotBuiltYet, TooComplex."""
    if len(tokens) > MAX_TOKENS:
        raise TooComplex(
            tokens[0].span,
            got=len(tokens),
            what="tokens",
            limit=MAX_TOKENS,
            remedy="split it into several kernels",
        )
    fused = _fuse(tokens)
    _check_nesting([t for _, t in fused])
    terminals = [terminal for terminal, _ in fused]
    try:
        steps = recognise(tables(), terminals)
    except Unexpected as problem:
        _check_brackets([t for _, t in fused[: problem.place + 1]])
        _check_cpp(fused, problem.place)
        _check_word(fused, problem.place, problem.accepted)
        raise _problem(fused, problem.place, problem.accepted) from None
    return build_tree(tables(), steps, terminals, [t for _, t in fused])


# Namespaces of Croqtile's library.
_NAMESPACES = frozenset({"croq", "cuda"})


def _fuse(tokens: Sequence[Token]) -> list[tuple[str, Token]]:
    """(terminal, token) pairs: a dot joined with its name, ``a::b`` with its parts."""
    punctuation, steps = tables().punctuation, _steps(tokens)
    own = _names_of_own_types(tokens)
    out: list[tuple[str, Token]] = []
    i = 0
    while i < len(tokens):
        t = tokens[i]
        if _is_constant(tokens, i):
            i += 1
            continue
        if t.kind == "name" and t.text in FOREIGN:
            from tilemma.croqtile.foreign import register_count  # most files have no such text

            made, end = register_count(tokens, i)
            tokens, i = [*made, *tokens[end:]], 0
            t = tokens[0]
        if t.kind == "bad":
            raise _bad(t)
        if t.text == "." and t.kind == "op":
            if i and t.glued and tokens[i - 1].kind == "int" and _text_at(tokens, i + 1) in ("f", "F"):
                raise _bad(_joined(tokens[i - 1], tokens[i + 1], tokens[i - 1].text + "."))
            if i + 1 == len(tokens) or tokens[i + 1].kind != "name" or not tokens[i + 1].glued:
                raise BadToken(
                    t.span,
                    what="`.` without a member",
                    wanted="a member's name directly after the dot",
                    remedy="write `.at`, `.chunkat`, ... without a blank; numbers have digits on both sides",
                )
            t = _joined(t, tokens[i + 1], "")
            out.append(("MAPPED" if t.text in ("map", "remap") else "MEMBER", t))
            i += 2
            continue
        if t.kind == "name":
            while _qualifies(tokens[i + 1 : i + 3]) and id(tokens[i + 1]) not in steps:
                t = _joined(t, tokens[i + 2], t.text + "::")
                i += 2
            terminal = "LEVEL" if "-" in t.text else terminal_of(t.text)
            if t.text in own and not (i and tokens[i - 1].text in _BEFORE_TYPES):
                terminal = "NAME"
            # `pipeline(cluster=2)`: the name of an argument.
            named = terminal == "LEVEL" and i and tokens[i - 1].text in ("(", ",")
            if named and i + 1 < len(tokens) and tokens[i + 1].text == "=":
                terminal = "NAME"
            out.append((terminal, t))
        elif t.kind == "op":
            sign = OPERATORS.get(t.text) or punctuation.get(t.text)
            if sign is None:
                raise _bad(t)
            out.append((sign, t))
        else:
            out.append((t.kind.upper(), t))
        i += 1
    return out


# Words that a type follows, where an array or a scalar is declared or a value converted.
_BEFORE_TYPES = frozenset({"global", "shared", "local", "frag", "mutable", "<", "|"})


def _names_of_own_types(tokens: Sequence[Token]) -> set[str]:
    """The types of tilemma alone that the kernel declares as names: `b1` is none in Croqtile, whose programs call
    a second copy so."""
    found: set[str] = set()
    for i, t in enumerate(tokens):
        if t.text in OWN_TYPES and t.kind == "name":
            before = tokens[i - 1].text if i else ""
            declared = before == "]" or WORDS.get(before) == "TYPE" or _text_at(tokens, i + 1) in ("=", "in", "by")
            if declared and before not in _BEFORE_TYPES:
                found.add(t.text)
    return found


def _text_at(tokens: Sequence[Token], i: int) -> str:
    return tokens[i].text if i < len(tokens) else ""


def _is_constant(tokens: Sequence[Token], i: int) -> bool:
    """Whether token number ``i`` is C++'s ``const``, ``constexpr`` or ``static constexpr`` before a type."""
    words = ("const", "constexpr")
    if _text_at(tokens, i) == "static" and _text_at(tokens, i + 1) in words:
        return True
    return _text_at(tokens, i) in words and (
        WORDS.get(_text_at(tokens, i + 1)) in ("TYPE", "STORAGE") or _is_constant(tokens, i + 1)
    )


def _qualifies(after: Sequence[Token]) -> bool:
    """Whether a name goes on with ``::name``."""
    return len(after) == 2 and after[0].text == "::" and after[1].kind == "name"


def _steps(tokens: Sequence[Token]) -> set[int]:
    """The identities of the tokens ``::`` that separate the bounds of a loop, as in ``foreach k(first::step)``."""
    found: set[int] = set()
    depth, header = 0, False
    for i, t in enumerate(tokens):
        if t.text == "foreach" and t.kind == "name":
            depth, header = 0, True
        elif header and t.text in ("(", "[", "{"):
            header = depth > 0 or (t.text == "(" and tokens[i - 1].kind == "name")
            depth += 1
        elif header and t.text in (")", "]", "}"):
            depth -= 1
            header = depth > 0 or (i + 1 < len(tokens) and tokens[i + 1].text == ",")
        elif header and depth == 1 and t.text == "::" and tokens[i - 1].text not in _NAMESPACES:
            found.add(id(t))
    return found


def _joined(a: Token, b: Token, prefix: str) -> Token:
    span = Span(a.span.file, a.span.line, a.span.column, b.span.end_line, b.span.end_column)
    return Token("name", prefix + b.text, span, a.row, a.glued, a.first, a.hidden | b.hidden)


def _bad(t: Token) -> BadToken:
    if t.text[0].isdigit():
        what, wanted, remedy = (
            f"`{t.text[:40]}` is not a number",
            "integers (`16`, `0x10`, suffixes u, l, ll) or floats with digits on both sides (`1.0`, `1.0f`)",
            "write it in one of these forms",
        )
    elif t.text == '"':
        what, wanted, remedy = "a string that does not end on its line", 'a closing `"`', "close the string"
    elif t.text[0] == "'":
        what, wanted, remedy = f"`{t.text}`", "no character literals", 'use an integer, or a string in `"`'
    else:
        what, wanted, remedy = f"the character `{t.text}`", "names, numbers and operators", "remove it"
    return BadToken(t.span, what=what, wanted=wanted, remedy=remedy)


_CLOSES = {")": "(", "]": "[", "}": "{"}


def _check_nesting(tokens: Sequence[Token]) -> None:
    """TooComplex when brackets nest deeper than MAX_NESTING."""
    depth = 0
    for t in tokens:
        if t.kind == "op":
            depth += (t.text in _CLOSES.values()) - (t.text in _CLOSES)
            if depth > MAX_NESTING:
                raise TooComplex(
                    t.span, got=depth, what="nested brackets", limit=MAX_NESTING, remedy="name inner parts"
                )


def _check_brackets(tokens: Sequence[Token]) -> None:
    """A closing bracket of the wrong kind is reported with its opener."""
    stack: list[Token] = []
    for t in tokens:
        if t.kind != "op":
            continue
        if t.text in _CLOSES.values():
            stack.append(t)
        elif t.text in _CLOSES and stack:
            opener = stack.pop()
            if opener.text != _CLOSES[t.text]:
                closer = next(c for c, o in _CLOSES.items() if o == opener.text)
                raise SyntaxProblem(
                    t.span,
                    found_text=f"`{t.text}` closes `{opener.text}`",
                    expected_text=f"`{closer}`",
                    remedy=f"close the `{opener.text}` first",
                    notes=[Note("opened here", opener.span)],
                )


def _check_cpp(fused: Sequence[tuple[str, Token]], at: int) -> None:
    """SyntaxProblem with Croqtile's form where the token number ``at`` belongs to a construct of C++."""
    if at < len(fused) and (found := c_spelling(fused, at)) is not None:
        place, text, remedy = found
        wanted = "Croqtile, which has a form of its own for this"
        raise SyntaxProblem(place, found_text=text, expected_text=wanted, remedy=remedy)


def _check_word(fused: Sequence[tuple[str, Token]], at: int, accepts: set[str]) -> None:
    """A name where only a level or an element type is legal: WrongValue, UnknownDtype."""
    terminal, token = fused[min(at, len(fused) - 1)]
    if terminal != "NAME" or "NAME" in accepts:
        return
    if "LEVEL" in accepts:
        before = fused[at - 2][1].text
        raise CHOICES[before if before in CHOICES else "level"].refused(token.text, token.span)
    others = [w for w, t in WORDS.items() if t in accepts and t != "TYPE"]
    if "TYPE" in accepts and not accepts >= _STATEMENT and nearest(token.text, others) is None:
        element_type(token.text, token.span)


def _problem(fused: Sequence[tuple[str, Token]], at: int, accepts: set[str]) -> SyntaxProblem:
    """The error for the token number ``at`` where one of ``accepts`` would have gone on."""
    punctuation = tables().punctuation
    spelled = {v: f"`{k}`" for k, v in punctuation.items()}
    wanted = _describe(accepts, spelled)
    terminal, token = fused[min(at, len(fused) - 1)]
    before = fused[at - 1][1] if at else token
    notes = [Note(f"it comes from the macro{'s' * (len(token.hidden) > 1)} "
                  + ", ".join(f"`{m}`" for m in sorted(token.hidden)))] if token.hidden else []  # fmt: skip
    semicolon = punctuation[";"]
    if semicolon in accepts and not accepts >= _STATEMENT and before.span.end_line < token.span.line:
        # The statement is incomplete: point to its end, not to the next line.
        end = before.span
        place = Span(end.file, end.end_line, end.end_column, end.end_line, end.end_column + 1)
        return SyntaxProblem(
            place, found_text="a statement that does not end", expected_text=wanted, remedy="add `;`", notes=notes
        )
    meant = _meant(fused, at)
    if at >= len(fused):
        text, remedy = "the kernel ends too early", "complete it"
    elif meant is not None:
        wrong, word = meant
        if WORDS[word] == "TYPE":
            element_type(wrong.text, wrong.span)
        return SyntaxProblem(
            wrong.span,
            found_text=f"`{wrong.text}` is not a word of the language",
            expected_text=f"`{word}`, with which this goes on" if wrong is not token else wanted,
            remedy=f"did you mean `{word}`?",
            notes=notes,
        )
    elif terminal == "ELSE":
        text, wanted = "`else` does not follow an `if`", "`else` directly after the body of its `if`"
        remedy = "move it there, without a `;` after the closing `}`, or remove it"
    elif terminal == "UPDATE":
        text, remedy = f"`{token.text}` cannot stand here", "update a variable in a statement of its own"
        if "ASSIGN" in accepts:
            remedy = f"write `=` to give a first value or a setting; {remedy}"
    elif terminal == "MEMBER" or terminal == "MAPPED":
        text, remedy = f"`.{token.text}` cannot stand here", "remove it, or complete what stands before it"
    elif at and fused[at - 1][0] == "TYPE" and token.text in (":", "=", ".", "+=", "-=", ")", ",", ";"):
        # `s2`, `u6`, `half` and so on look like names and are types.
        return SyntaxProblem(
            before.span,
            found_text=f"`{before.text}` is an element type and cannot be a name",
            expected_text=wanted,
            remedy=f"choose another name, `{before.text}_` for instance",
            notes=notes,
        )
    else:
        text = f"`{token.text}` cannot stand here"
        remedy = f"write {_FORMS[head]}" if (head := _head(fused, at)) is not None else f"put {wanted} here"
        if "NAME" in accepts and not accepts >= _STATEMENT and token.kind == "name" and terminal != "NAME":
            text = f"`{token.text}` is a word of the language and cannot be a name"
            remedy = f"choose another name, `{token.text}_` for instance"
    return SyntaxProblem(token.span, found_text=text, expected_text=wanted, remedy=remedy, notes=notes)


def _head(fused: Sequence[tuple[str, Token]], at: int) -> str | None:
    """The first word of the statement in whose head token number ``at`` is, if that is in `_FORMS`."""
    depth = 0
    for i in range(min(at, len(fused)) - 1, -1, -1):
        terminal, token = fused[i]
        if at < len(fused) and token.span.line < fused[at][1].span.line:
            return None  # a body without braces
        if terminal in _FORMS:
            inside = depth < 0 or i + 1 == at
            return terminal if inside or terminal not in _PARENTHESISED else None
        if terminal in _STATEMENT_WORDS or (terminal in ("ASSIGN", "UPDATE") and fused[i - 2][0] not in _FORMS):
            return None
        if token.kind == "op":
            depth += (token.text in _CLOSES) - (token.text in _CLOSES.values())
            body = token.text == "{" and depth < 0 and fused[i - 1][0] not in (*_FORMS, "ASSIGN")
            if token.text == ";" or body or (token.text == "}" and fused[i + 1][0] not in ("IN", "BY")):
                return None
    return None


def _meant(fused: Sequence[tuple[str, Token]], at: int) -> tuple[Token, str] | None:
    """A misspelt word: a name at ``at``, before it, or at the start of its statement, that resembles a word with
    which the text could be read on."""
    import difflib

    ends = (i + 1 for i in range(min(at, len(fused)) - 1, -1, -1) if fused[i][1].text in (";", "{", "}"))
    for i in dict.fromkeys((at, at - 1, next(ends, 0))):
        if not 0 <= i < len(fused) or fused[i][0] != "NAME" or len(fused[i][1].text) < 3:
            continue
        for word in difflib.get_close_matches(fused[i][1].text, list(WORDS), 3):
            if _continues(fused[: at + 2], i, WORDS[word]):
                return fused[i][1], word
    return None


def _continues(fused: Sequence[tuple[str, Token]], i: int, terminal: str) -> bool:
    """Whether ``fused`` can be read to its end with ``terminal`` as its token number ``i``."""
    terminals = [terminal if k == i else known for k, (known, _) in enumerate(fused)]
    try:
        recognise(tables(), terminals)
    except Unexpected as problem:
        return problem.place >= len(terminals)
    return True


def _describe(accepts: set[str], spelled: dict[str, str]) -> str:
    """The legal syntax at a position, from the legal terminals."""
    rest = set(accepts)
    parts: list[str] = []
    if rest >= _STATEMENT:
        others = {spelled.get(t) for t in rest} & {"`}`", "`;`"}
        return " or ".join(["a statement", *sorted(o for o in others if o)])
    if rest >= _EXPRESSION:
        parts.append("an expression")
        rest = {t for t in rest if spelled.get(t) in ("`;`", "`)`", "`:`", "`]`")}
    elif rest >= {"PLUS", "STAR", "HASH"}:
        # After an operand: "an operator" stands for all operators.
        argument = any(spelled.get(t) == "`)`" for t in rest)
        operators = set(OPERATORS.values()) - ({"ASSIGN"} if not argument else set()) | {"MEMBER", "MAPPED"}
        parts.append("an operator")
        rest = {t for t in rest - operators if spelled.get(t) not in ("`(`", "`[`", "`<`", "`>`")}
    words = sorted({_spell(t, spelled) for t in rest})
    parts += words[:8]
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " or " + parts[-1] if parts else "nothing more"


def _spell(terminal: str, spelled: dict[str, str]) -> str:
    if terminal in spelled:
        return spelled[terminal]
    if terminal in NAMES:
        return NAMES[terminal]
    texts = [w for w, t in (*WORDS.items(), *OPERATORS.items()) if t == terminal]
    return f"`{texts[0]}`" if texts else terminal
