"""Control flow of a decoded program: where divergent lanes meet again, which reads may see unwritten registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilemma.machine.program import Step

_BRANCH, _EXIT = 2, 3


class Graph:
    """Basic blocks over steps; block numbers in order of their first step, the exit last."""

    def __init__(self, steps: list[Step]) -> None:
        self.steps = steps
        n = len(steps)
        leaders = {0, n}
        for s in steps:
            if s.kind == _BRANCH:
                leaders |= {s.index + 1, *self._targets(s)}
            elif s.kind == _EXIT:
                leaders.add(s.index + 1)
        self.leaders = leaders
        self.starts = sorted(x for x in leaders if x < n)
        self.block_of = {start: i for i, start in enumerate(self.starts)}
        self.exit = len(self.starts)
        self.successors: list[list[int]] = [self._after(i) for i in range(len(self.starts))]

    @staticmethod
    def _targets(s: Step) -> list[int]:
        return list(s.targets) if s.targets else [s.target]

    def _end(self, block: int) -> int:
        return self.starts[block + 1] if block + 1 < len(self.starts) else len(self.steps)

    def _number(self, step: int) -> int:
        return self.block_of.get(step, self.exit)

    def _after(self, block: int) -> list[int]:
        last = self.steps[self._end(block) - 1]
        follow = [self._number(last.index + 1)]
        if last.kind == _BRANCH:
            jumps = [self._number(t) for t in self._targets(last)]
            return sorted({*jumps, *(follow if last.guard >= 0 else [])})
        if last.kind == _EXIT:
            return sorted({self.exit, *(follow if last.guard >= 0 else [])})
        return follow

    def reconvergence(self) -> list[int]:
        """For each step, the index where the sides of a divergent branch there meet; -1 for none.

        That is the first step of the branch's immediate post-dominator (Fung et al., "Dynamic Warp
        Formation", section 2).
        """
        count = self.exit + 1
        everything = (1 << count) - 1
        post = [everything] * count
        post[self.exit] = 1 << self.exit
        changed = True
        while changed:
            changed = False
            for b in range(self.exit - 1, -1, -1):
                meet = everything
                for s in self.successors[b]:
                    meet &= post[s]
                new = meet | 1 << b
                if new != post[b]:
                    post[b], changed = new, True
        out = [-1] * len(self.steps)
        blocks = {post[b]: b for b in range(count)}
        for b in range(self.exit):
            last = self.steps[self._end(b) - 1]
            if last.kind != _BRANCH:
                continue
            strict = post[b] & ~(1 << b)
            # The immediate one is post-dominated by all others; from where the exit is reached, by these alone.
            best = blocks.get(strict)
            if best is None:
                candidates = (c for c in range(self.exit) if strict >> c & 1)
                best = max(candidates, key=lambda c: post[c].bit_count(), default=self.exit)
            out[last.index] = self.starts[best] if best != self.exit else -1
            # Lanes that have only the exit before them do not wait there for the others.
            first = self.steps[out[last.index]]
            if first.kind == _EXIT and first.guard < 0:
                out[last.index] = -1
        return out

    def reaching(self, wanted: set[int]) -> set[int]:
        """The first steps of the blocks from which a step of ``wanted`` can be reached."""
        found = {b for b in range(self.exit) if any(i in wanted for i in range(self.starts[b], self._end(b)))}
        before: dict[int, list[int]] = {}
        for b, following in enumerate(self.successors):
            for s in following:
                before.setdefault(s, []).append(b)
        left = list(found)
        while left:
            new = set(before.get(left.pop(), ())) - found
            found |= new
            left += new
        return {self.starts[b] for b in found}

    def maybe_undefined(self, passed_on: list[frozenset[int] | None]) -> list[frozenset[int]]:
        """For each step, the registers it may read that some path from the entry leaves undefined.

        What a step writes is undefined where one of the registers of ``passed_on`` is; None: it is defined.
        """
        if not self.steps:
            return []
        everything = 0
        for s in self.steps:
            for r in (*s.reads, *s.writes, *(r for r, _ in s.conditional_reads)):
                everything |= 1 << r
        given = [None if x is None else sum(1 << r for r in x) for x in passed_on]
        into = [everything] * (self.exit + 1)
        if into:
            into[0] = 0
        work = [0]
        seen = set()
        while work:
            b = work.pop()
            seen.add(b)
            out = into[b]
            for i in range(self.starts[b], self._end(b)):
                out = _after(self.steps[i], given[i], out)
            for after in self.successors[b]:
                if after != self.exit and (into[after] & out != into[after] or after not in seen):
                    into[after] &= out
                    work.append(after)
        found: list[frozenset[int]] = []
        for b in range(self.exit):
            defined = into[b]
            for i in range(self.starts[b], self._end(b)):
                s = self.steps[i]
                wanted = (*s.reads, *(r for r, _ in s.conditional_reads))
                found.append(frozenset(r for r in wanted if not defined >> r & 1))
                defined = _after(s, given[i], defined)
        return found


def _after(step: Step, passed_on: int | None, defined: int) -> int:
    """The registers, as bits, that are defined after ``step`` where ``defined`` were before."""
    writes = sum(1 << r for r in step.writes)
    if passed_on is not None and passed_on & ~defined:
        return defined & ~writes
    return defined | writes if step.guard < 0 else defined
