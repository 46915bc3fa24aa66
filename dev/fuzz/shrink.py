"""Smaller programs that go wrong in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from dev.fuzz import programs as f


def shrink(p: f.Program, fails: Callable[[f.Program], bool], most: int = 400) -> f.Program:
    """Statements left out and expressions replaced by their parts, as long as ``fails`` holds.

    ``most``: how many candidates are tried.
    """
    tried = 0
    changed = True
    while changed and tried < most:
        changed = False
        for body in _smaller(p.body):
            tried += 1
            candidate = replace(p, body=body)
            if tried > most:
                break
            if _declared(candidate) and fails(candidate):
                p, changed = candidate, True
                break
    return p


def _smaller(x: Any) -> Iterator[Any]:
    """``x`` with one thing simplified, the larger steps first."""
    if isinstance(x, tuple):
        if x and isinstance(x[0], f.Stmt):
            for i in range(len(x)):
                yield (*x[:i], *x[i + 1 :])
            for i, s in enumerate(x):
                if isinstance(s, f.InThreads):
                    yield (*x[:i], *s.body, *x[i + 1 :])
                if isinstance(s, f.If):
                    yield (*x[:i], *s.then, *x[i + 1 :])
                if isinstance(s, f.For) and not _jumps(s.body):
                    yield (*x[:i], f.Var(s.name, "s32", f.Bin("s32", "*", s.extent, f.Lit("s32", 0))), *s.body,
                           *x[i + 1 :])  # fmt: skip
        for i, y in enumerate(x):
            for z in _smaller(y):
                yield (*x[:i], z, *x[i + 1 :])
        return
    if isinstance(x, (f.Bin, f.Mixed, f.Sel, f.Un, f.Conv)):
        for fl in fields(x):
            part = getattr(x, fl.name)
            if isinstance(part, f.Expr) and part.t == x.t and not isinstance(part, f.Lit):
                yield part
    if isinstance(x, f.Chain):
        for z in _smaller(x.cuts):
            yield replace(x, cuts=z)
        return
    if isinstance(x, f.For):
        if x.unroll is not None:
            yield replace(x, unroll=None)
        if x.ranged:
            yield replace(x, start=0, step=1, short=0)
    if isinstance(x, (f.Var, f.Set, f.Store, f.ViewStore)) and not isinstance(x.value, (f.Lit, f.Old)):
        yield replace(x, value=f.Lit(x.value.t, 1))
    if isinstance(x, (f.Elem, f.ViewElem, f.Cut)):
        # An index stays within its extent; where an instance writes stays its own.
        for n, index in enumerate(x.at):
            if index is not None and index != f.Lit("s32", 0):
                at: Any = (*x.at[:n], f.Lit("s32", 0), *x.at[n + 1 :])
                yield replace(x, at=at)
    if isinstance(x, (f.Expr, f.Stmt, f.Cut)):
        for fl in fields(x):
            if fl.name not in ("t", "at", "place"):
                for z in _smaller(getattr(x, fl.name)):
                    yield replace(x, **{fl.name: z})


def _jumps(body: tuple[f.Stmt, ...]) -> bool:
    return any(isinstance(s, f.Jump) for s in f.parts(body))


def _declared(p: f.Program) -> bool:
    """Whether every name is still declared before its use."""
    known = {a.name for a in p.arrays} | {n for n, _, _ in p.scalars} | set(p.sizes)
    return _visit(p.body, known)


def _visit(x: Any, known: set[str]) -> bool:
    if isinstance(x, tuple) and x and isinstance(x[0], f.Stmt):
        inner = set(known)
        return all(_visit(s, inner) for s in x)
    match x:
        case f.Var() | f.Alloc() | f.Fill() | f.Load() | f.Frag() | f.Let():
            name = x.name if isinstance(x, (f.Var, f.Alloc, f.Let)) else x.tile
            good = all(_visit(getattr(x, fl.name), known) for fl in fields(x) if fl.name not in ("name", "tile"))
            known.add(name)
            return good
        case f.Start():
            good = _visit(x.src, known)
            known |= {x.name, f"{x.name}.data"}
            return good
        case f.Wait() | f.Swap():
            return set(x.futures) <= known
        case f.For():
            return _visit((x.extent, x.start), known) and _visit(x.body, known | {x.name})
        case f.Parallel():
            return all(_visit(e, known) for e in x.extents) and _visit(x.body, known | set(x.names))
        case f.ApplyBody():
            return x.tile in known and _visit(x.body, known | set(x.names))
        case f.Apply():
            return x.tile in known and _visit(x.value, known | set(x.names))
    names = [getattr(x, n, None) for n in ("name", "buffer", "array", "tile", "acc", "a", "b", "src", "dst")]
    if any(isinstance(n, str) and n not in known for n in names):
        return False
    if isinstance(x, tuple):
        return all(_visit(y, known) for y in x)
    if isinstance(x, (f.Expr, f.Stmt, f.View, f.Chain, f.Cut)):
        return all(_visit(getattr(x, fl.name), known) for fl in fields(x))
    return True
