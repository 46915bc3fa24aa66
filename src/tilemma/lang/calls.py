"""Calls and operators that Python itself refuses, as errors of the language with the user's line."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from tilemma.errors import CompileError, Span, nearest, source_line
from tilemma.ir.constructs import KINDS
from tilemma.ir.refusals import WrongArity, WrongMember, WrongValue
from tilemma.ir.spellings import python_form
from tilemma.lang.spans import instruction_span

_CALL = re.compile(r"([\w.]+)\(\) (missing|takes|got)\b")
_KEYWORD = re.compile(r"unexpected keyword argument '(\w+)'")
_CAPITALISED = re.compile(r"\b[A-Z]\w*")


def refused_call(e: Exception) -> CompileError | None:
    """The error for a TypeError or AttributeError that Python raised in the user's code because of a call of the
    language, or of an operator or attribute of one of its values; None for any other."""
    traceback = e.__traceback__
    if not isinstance(e, TypeError | AttributeError) or traceback is None:
        return None
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    span = instruction_span(traceback.tb_frame.f_code, traceback.tb_lasti)
    functions, articles = _language()
    called = _CALL.match(str(e))
    if called is not None and called[1] in functions:
        return _wrong_call(functions[called[1]], str(e), span)
    for name in _CAPITALISED.findall(str(e)):
        if name in articles and isinstance(e, AttributeError):
            wanted = "what docs/language.md lists for it"
            fix = python_form(str(e.name or "")) or "read or set something else, or remove it"
            if e.name:
                return WrongMember(span, kind=articles[name], name=e.name, known=wanted, suggestion=fix)
            got = "an assignment"
            return WrongValue(span, what=f"an attribute of {articles[name]}", got=got, wanted=wanted, fix_text=fix)
        if name in articles:
            what, advice = "an operator of Python", ""
            if name in ("Fragment", "Elementwise"):
                what = "a function or operator of Python or NumPy"
                advice = (
                    "use `+ - * /` and the functions of `tm.math`, such as `tm.math.exp(t)`, on whole tiles; "
                    "products are `mma.row.row(mc, a, b)`"
                )
            return KINDS["scalar"].refused(what, articles[name], span, advice or None)
    return None


def _language() -> tuple[dict[str, Callable[..., Any]], dict[str, str]]:
    """The functions of the front end by qualified name, and descriptions of the instances of its classes."""
    functions: dict[str, Callable[..., Any]] = {}
    articles: dict[str, str] = {}
    modules = [m for name, m in sys.modules.items() if name.startswith("tilemma.lang.")]
    for value in (v for m in modules for v in vars(m).values()):
        if isinstance(value, FunctionType):
            functions[value.__qualname__] = value
        elif isinstance(value, type) and value.__module__.startswith("tilemma.lang."):
            functions |= {f.__qualname__: f for f in vars(value).values() if isinstance(f, FunctionType)}
            if hasattr(value, "article"):
                text = value.article
                articles[value.__name__] = text if isinstance(text, str) else "a view before `.at(...)`"
    return functions, articles


def _wrong_call(function: Callable[..., Any], message: str, span: Span | None) -> CompileError:
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    name = _called(span) or function.__name__
    required = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    # Reductions have one axis.
    form = f"{name}({', '.join('axis=1' if p == 'axis' else p for p in required)})"
    keyword = _KEYWORD.search(message)
    if keyword is not None:
        known = [p.name for p in parameters]
        near = nearest(keyword[1], known)
        return WrongValue(
            span,
            what=f"`{name}`",
            got=f"an argument `{keyword[1]}`",
            wanted="one of " + ", ".join(known),
            fix_text=f"did you mean `{near}`?" if near else f"write `{form}`",
        )
    got = re.search(r"\b(\d{1,9}) (?:positional arguments? )?(?:was|were) given", message)
    own = "self" in inspect.signature(function).parameters
    missing = re.search(r"missing (\d{1,9})", message)
    count = int(got[1]) - own if got else len(required) - (int(missing[1]) if missing else 0)
    optional = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    options = f", and the keywords {', '.join(f'{n}=' for n in optional)}" if optional else ""
    want = f"{len(required)}: {', '.join(required)}{options}" if required else f"none{options}"
    return WrongArity(span, what=name, got=count, want=want, form=form)


def _called(span: Span | None) -> str:
    """The text before the arguments of the call at ``span``."""
    line = "" if span is None else source_line(span.file, span.line) or ""
    found = re.match(r"[\w.]+(?=\()", line[span.column - 1 :]) if span is not None else None
    return found[0] if found else ""
