"""The features of a random program: a survey counts the programs with each."""

from __future__ import annotations

from collections.abc import Iterator

from dev.fuzz import programs as f


def features(p: f.Program) -> set[str]:
    """Names of the constructs of a program."""
    return set(_of_program(p)) | {x for s in f.parts(p.body) for x in _of(s)} | set(_nested(p.body, ()))


def _of_program(p: f.Program) -> Iterator[str]:
    yield from (f"{n} only" for n in p.languages if len(p.languages) == 1)
    if p.edges:
        yield "extreme inputs"
    for _, kind in p.hosted:
        yield f"array {kind}"
    for a in p.arrays:
        yield f"type {a.t}"
    if len(p.body) > 1:
        yield "two launches"


def _of(x: f.Stmt | f.Expr | f.Cut) -> Iterator[str]:
    match x:
        case f.Parallel():
            yield f"level {x.level}"
        case f.For():
            yield "loop"
            if x.unroll is not None:
                yield "loop unrolled in part" if x.unroll else "loop unrolled"
                if any(isinstance(s, f.Jump) for s in f.parts(x.body)):
                    yield "jump in unrolled loop"
            if x.ranged:
                yield "loop over a range"
            if not isinstance(x.start, int):
                yield "loop from an index"
            if any(isinstance(e, f.Name) for e in f.parts(x.extent)):
                yield "loop to an index or value"
        case f.Jump():
            yield x.word
        case f.Bin(op=("//" | "%" | "quot" | "rem") as op):
            yield f"division {op}" + (" of s64 or u64" if x.t in ("s64", "u64") else "")
        case f.Bin(op=("<<" | ">>")):
            yield "shift"
        case f.Mixed():
            yield "mixed types"
        case f.Old():
            yield f"old value of atomic {x.op}"
            yield f"old value of atomic on {x.t}"
        case f.Cut():
            yield f"view {x.kind}" + (" with strides" if x.strides else " with step" if x.step else "")
        case f.Move():
            shape = "transposed" if x.perm else "padded" if x.pad else "plain"
            yield f"copy {shape}"
        case (
            f.Swap() | f.InThreads() | f.ApplyBody() | f.While() | f.Let() | f.ViewStore() | f.Atomic() | f.Start()
        ):
            yield type(x).__name__.lower()
        case f.Alloc():
            yield f"{x.space} of {len(x.shape)} dimensions"
    if isinstance(x, (f.Move, f.ViewElem, f.Let)):
        chains = [c for c in f.parts(x) if isinstance(c, f.Chain)]
        if any(len(c.cuts) > 1 for c in chains):
            yield "view of a view"


def _nested(body: tuple[f.Stmt, ...], levels: tuple[str, ...]) -> Iterator[str]:
    """Chains of levels, loops in loops, variables that an inner level sets."""
    for s in body:
        match s:
            case f.Parallel():
                yield " > ".join((*levels, s.level))
                declared = {v.name for v in f.parts(s.body) if isinstance(v, f.Var)}
                if any(isinstance(v, f.Set) and v.name not in declared for v in f.parts(s.body)):
                    yield f"variable of an outer level set in {s.level}"
                yield from _nested(s.body, (*levels, s.level))
            case f.For() | f.While():
                if any(isinstance(t, (f.For, f.While)) for t in f.parts(s.body)):
                    yield "loop in a loop"
                if any(isinstance(t, f.Parallel) for t in f.parts(s.body)):
                    yield "levels in a loop"
                yield from _nested(s.body, levels)
            case f.InThreads():
                yield from _nested(s.body, levels)
            case f.If():
                yield from _nested((*s.then, *s.otherwise), levels)
