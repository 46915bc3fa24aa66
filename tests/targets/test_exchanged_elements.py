"""Groups that exchange elements of a shared buffer see each other's writes in program order, on every target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling import examples
from tilemma import croqtile
from tilemma.ir.tile import Parallel
from tilemma.ir.types import GROUP
from tilemma.ir.walk import walk
from tilemma.kernels import Kernel
from tilemma.passes.scope import Dependence
from tilemma.targets.cpu.exchange import Meetings

# A statement: ("write" or "read", shift, value); ("if" or "inthreads", how many groups, statement);
# ("loop", iterations, statements).
Statement = tuple[str, int, Any]
PLAIN = st.tuples(st.sampled_from(["write", "read"]), st.integers(0, 3), st.integers(0, 5))
GUARDED = st.tuples(st.sampled_from(["if", "inthreads"]), st.integers(1, 4), PLAIN)
LOOP = st.tuples(st.just("loop"), st.integers(1, 3), st.lists(st.one_of(PLAIN, GUARDED), min_size=1, max_size=3))
PROGRAMS = st.tuples(
    st.integers(2, 4), st.booleans(), st.lists(st.one_of(PLAIN, GUARDED, LOOP), min_size=2, max_size=5)
)


def text(s: Statement, groups: int, lane: str, depth: int = 0) -> str:
    kind, n, rest = s
    match kind:
        case "write":
            return f"s.at((w + {n}) % {groups}{lane}) = v + w + {rest};"
        case "read":
            return f"v = 2 * v + s.at((w + {n}) % {groups}{lane});"
        case "loop":
            return f"foreach k{depth} in {n} {{ {' '.join(text(x, groups, lane, depth + 1) for x in rest)} }}"
    return f"{kind} (w < {n}) {{ {text(rest, groups, lane)} }}"


def expected(program: list[Statement], groups: int) -> np.ndarray[Any, Any]:
    shared, v = np.zeros(groups, np.int64), np.zeros(groups, np.int64)
    w = np.arange(groups)

    def run(s: Statement, some: np.ndarray[Any, Any]) -> None:
        kind, n, rest = s
        if kind == "write":
            shared[(some + n) % groups] = v[some] + some + rest
        elif kind == "read":
            v[some] = 2 * v[some] + shared[(some + n) % groups]
        elif kind == "loop":
            for _ in range(n):
                for x in rest:
                    run(x, some)
        else:
            run(rest, some[some < n])

    for s in program:
        run(s, w)
    return v.astype(np.int32)


def kernel(program: list[Statement], groups: int, lanes: bool) -> Kernel:
    work = "mutable int v = 0; " + " ".join(text(s, groups, ", t" if lanes else ", 0") for s in program)
    inner = f"parallel t by 32 : thread {{ {work} out.at(w, t) = v; }}" if lanes else f"{work} out.at(w, 0) = v;"
    source = f"""__co__ void f(global s32 [4, 32] out) {{ parallel b by 1 : block {{
      shared s32 [{groups}, 32] s {{0}}; parallel w by {groups} : group {{ {inner} }} }} }}"""
    return Kernel(croqtile.load(source, "exchanged.co").sources["f"])


@settings(max_examples=examples(60), deadline=None)
@given(PROGRAMS)
def test_groups_see_the_statements_before(case: tuple[int, bool, list[Statement]]) -> None:
    groups, lanes, program = case
    made, wanted = kernel(program, groups, lanes), expected(program, groups)
    for run in (made.on("cpu"), made.on("machine", arch="sm_80")):
        out = np.zeros((4, 32), np.int32)
        run(out)
        for column in range(32 if lanes else 1):
            np.testing.assert_array_equal(out[:groups, column], wanted)


OWN = ["s.at(w, 0)", "s.at(2 * w + 1, 0)", "s.at(3 - w, 0)"]
SHARED = [
    "s.at(w / 2, 0)",
    "s.at(w, 0) = 1.0f; x.at(1) = s.at(0, 0); s.at(w, 0)",
    "s.at(w, w) = x.at(0); s.at(1, w / 2)",
]


@pytest.mark.parametrize("place", OWN + SHARED)
def test_groups_meet_only_where_they_may_exchange(place: str) -> None:
    source = f"""__co__ void f(global f32 [4] x) {{ parallel b by 1 : block {{ shared f32 [8, 8] s;
      parallel w by 4 : group {{ {place} = 1.0f; x.at(w) = {place.rpartition("; ")[2]}; }} }} }}"""
    built = croqtile.load(source, "meet.co").sources["f"].build()
    (groups,) = (op for op in walk(built.body) if isinstance(op, Parallel) and op.level == GROUP)
    assert bool(Meetings(groups, Dependence(built.body)).before) == (place in SHARED)
