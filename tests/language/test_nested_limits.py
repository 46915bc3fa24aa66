"""Loops whose limits are other indices: an index counts with its value, one without a loop with its bound."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np
from differential import agree
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling import examples


@dataclass
class Nest:
    """A loop nest in both spellings, and the index tuples that it visits."""

    random: Random
    co: list[str] = field(default_factory=list)
    python: list[str] = field(default_factory=list)
    visited: list[dict[str, int]] = field(default_factory=lambda: [{}])

    def limit(self, level: int) -> tuple[str, str, str]:
        """(in Croqtile, in Python, as Python computes it) of the number of turns of loop ``level``."""
        n = self.random.randint(1, 5)
        if level == 0:
            return str(n), str(n), str(n)
        i = f"i{self.random.randrange(level)}"
        return self.random.choice(
            (
                (i, i, i),
                (i, i, i),
                (f"#{i}", f"ubound({i})", f"bound_{i}"),
                (f"{i} + {n}", f"{i} + {n}", f"{i} + {n}"),
                (f"{i} * 2", f"{i} * 2", f"{i} * 2"),
            )
        )

    def loop(self, level: int) -> None:
        co, python, turns = self.limit(level)
        i, start = f"i{level}", self.random.choice((0, 0, 1))
        free = self.random.random() < 0.4
        unroll = self.random.choice((None, None, 0, 2))
        hint = "" if unroll is None else ": unroll" if unroll == 0 else f": unroll({unroll})"
        option = "" if unroll is None else ", unroll=True" if unroll == 0 else f", unroll={unroll}"
        if free:  # by way of an index without a loop
            part = f"({start}:)" if start else ""
            self.co.append(f"with {i} in {co} {{ foreach {i}{part} {hint} {{")
            self.python.append("    " * (level + 2) + f"{i} = bound({python})")
            python = i
        elif start:
            self.co.append(f"with {i} in {co} {{ foreach {i}({start}:) {hint} {{")
        else:
            self.co.append(f"{{ foreach {i} in {co} {hint} {{")
        first = f", start={start}" if start else ""
        self.python.append("    " * (level + 2) + f"for {i} in foreach({python}{first}{option}):")
        self.visited = [
            {**v, i: k, f"bound_{i}": limit}
            for v in self.visited
            for limit in [eval(turns, {}, dict(v))]
            for k in range(start, limit)
        ]

    def texts(self, depth: int) -> tuple[str, str]:
        for level in range(depth):
            self.loop(level)
        names = [f"i{level}" for level in range(depth)]
        digits = " + ".join(f"{n} * {11**k}" for k, n in enumerate(names))
        indent = "    " * (depth + 2)
        self.python += [f"{indent}n += 1", f"{indent}s.set(s * 7 + {digits})"]
        co = f"""
__co__ void f(global s32 [2] o) {{ parallel b by 1 : block {{
  mutable int n = 0; mutable u32 s = 1;
  {" ".join(self.co)} n += 1; s = s * 7 + {digits}; {"} }" * depth}
  o.at(0) = n; o.at(1) = s % 1000003;
}} }}"""
        head = ["@tm.kernel", 'def f(o: tm.Global["s32", 2]):', "    for b in parallel(1, level='block'):"]
        first = ["        n, s = var(0), var(1, 'u32')"]
        last = ["        o[0] = n", "        o[1] = s % 1000003"]
        return co, "\n".join([*head, *first, *self.python, *last]) + "\n"

    def expected(self, depth: int) -> list[int]:
        s = 1
        for v in self.visited:
            s = (s * 7 + sum(v[f"i{k}"] * 11**k for k in range(depth))) % 2**32
        return [len(self.visited), s % 1000003]


@settings(max_examples=examples(40), deadline=None)
@given(random=st.randoms(use_true_random=False), depth=st.integers(2, 3))
def test_indices_as_limits(random: Random, depth: int) -> None:
    nest = Nest(random)
    co, python = nest.texts(depth)
    found = agree(co, python, {"o": np.zeros(2, np.int32)})
    assert not isinstance(found, str), f"{found}\n{co}\n{python}"
    assert found["o"].tolist() == nest.expected(depth), f"{co}\n{python}"


def test_an_index_without_a_loop_as_an_extent() -> None:
    co = """
    __co__ void f(global s32 [5, 5] o) {
      with k in 5 { parallel p by k : block { foreach j in k { o.at(p, j) = p * 10 + j; } } }
    }"""
    python = """
@tm.kernel
def f(o: tm.Global["s32", 5, 5]):
    k = bound(5)
    for p in parallel(k, level="block"):
        for j in foreach(k):
            o[p, j] = p * 10 + j
"""
    found = agree(co, python, {"o": np.zeros((5, 5), np.int32)})
    assert not isinstance(found, str)
    np.testing.assert_array_equal(found["o"], np.arange(5)[:, None] * 10 + np.arange(5))


def test_a_grid_that_never_starts() -> None:
    """The first extent is at most 0 for every array."""
    co = """
    __co__ void f(global s32 [M, N] o) {
      parallel {i, j} by [cdiv(M, -1), N] : block { o.at(i, j) = 1; }
    }"""
    python = """
@tm.kernel
def f(o: tm.Global["s32", "M", "N"]):
    for i, j in parallel(cdiv(o.shape[0], -1), o.shape[1], level="block"):
        o[i, j] = 1
"""
    found = agree(co, python, {"o": np.zeros((3, 4), np.int32)})
    assert not isinstance(found, str) and not found["o"].any()
