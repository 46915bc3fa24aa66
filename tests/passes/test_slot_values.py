"""The values that a variable takes, and groups in flight, against runs of the same statements."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from tilemma import dtypes
from tilemma.ir.expr import Binary, Const, Dim, Expr, Index, Var, binary, const
from tilemma.ir.tile import Assign, Body, Break, Continue, Declare, For, If, MmaCommit, MmaWait, Op
from tilemma.passes.slot_values import _increases, first_values, values_taken
from tilemma.passes.threads import Block, Node
from tilemma.targets.ptx.passes.event_dependences import _entered
from tilemma.targets.ptx.passes.groups_in_flight import _Count

SLOT = Var("slot", dtypes.s32)
UNKNOWN = Dim("N")


def loop(stop: Expr, *body: Op, start: int = 0, step: int = 1, name: str = "k") -> For:
    return For(Index(name, stop), const(start), stop, const(step), body)


def next_value(add: int, modulus: int) -> Expr:
    total = binary("add", SLOT, const(add))
    return binary("mod", total, const(modulus)) if modulus else total


@pytest.mark.parametrize("modulus", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("trips", [1, 2, 3, 7, None])
def test_the_values_of_a_slot_are_those_of_a_run(trips: int | None, modulus: int) -> None:
    """In order, each once, until they repeat; at most some of an endless sequence."""
    for first, add, outer in ((0, 1, 1), (1, 1, 2), (2, 3, 1)):
        extent = UNKNOWN if trips is None else const(trips)
        change = Assign(SLOT, next_value(add, modulus))
        body = (Declare(SLOT, const(first)), loop(const(outer), loop(extent, change), name="o"))
        run, value = [first], first
        for _ in range(200 if trips is None else trips * outer - 1):
            value = (value + add) % modulus if modulus else value + add
            if value in run:
                break
            run.append(value)
        found = values_taken(SLOT, body)
        assert found == run[: len(found)] and len(found) == min(len(run), 65 if trips is None else 200)


@pytest.mark.parametrize("how", ["branch", "break", "twice", "unknown", "from another"])
def test_nothing_is_known_of_a_slot_that_changes_otherwise(how: str) -> None:
    change = Assign(SLOT, next_value(1, 3))
    always = binary("eq", UNKNOWN, const(1))
    steps: dict[str, Body] = {
        "branch": (If(always, (change,)),),
        "break": (change, Break()),
        "twice": (change, change),
        "unknown": (change,),
        "from another": (Assign(SLOT, Var("other", dtypes.s32)),),
    }
    start = UNKNOWN if how == "unknown" else const(0)
    found = values_taken(SLOT, (Declare(SLOT, start), loop(const(4), *steps[how])))
    assert found == ([0] if how == "from another" else [])


def test_the_first_values_of_an_index() -> None:
    for start, stop, step in ((0, 5, 1), (1, 9, 3), (4, 4, 1), (0, 1000, 1), (5, None, 2)):
        of = loop(UNKNOWN if stop is None else const(stop), start=start, step=step)
        everything = range(start, 10**6 if stop is None else stop, step)
        assert list(first_values(of)) == list(everything[:64])
    assert not first_values(For(Index("k", const(4)), UNKNOWN, const(4), const(1), ()))


@pytest.mark.parametrize(("by", "grows"), [(1, True), (3, True), (0, False), (-1, False)])
def test_a_slot_grows_by_what_is_added(by: int, grows: bool) -> None:
    assert _increases(Assign(SLOT, Binary("add", SLOT, const(by)))) is grows
    assert not _increases(Assign(SLOT, Binary("add", Var("other", dtypes.s32), const(by))))


def whole(owner: Node | None) -> Block:
    return Block(owner, "body", (), (), {}, np.ones(32, bool), ())


@pytest.mark.parametrize(
    ("start", "stop", "entered"),
    [(0, const(1), True), (0, const(0), False), (2, const(2), False), (2, const(3), True),
     (0, UNKNOWN, False), (0, Index("i", const(4)), False)],
)  # fmt: skip
def test_a_loop_is_entered_if_it_has_an_iteration_for_sure(start: int, stop: Expr, entered: bool) -> None:
    assert _entered(whole(Node(loop(stop, start=start), whole(None)))) is entered
    assert _entered(whole(None)) and not _entered(whole(Node(If(Const(True), ()), whole(None))))


# ---- groups in flight ------------------------------------------------------------------------------------


def random_body(r: random.Random, depth: int, in_loop: bool) -> Body:
    found: list[Op] = []
    for _ in range(r.randint(1, 4)):
        match r.randrange(8 if depth else 4):
            case 0 | 1:
                found.append(MmaCommit())
            case 2 | 3:
                found.append(MmaWait(r.randint(0, 2)))
            case 4 | 5:
                found.append(loop(UNKNOWN, *random_body(r, depth - 1, True), name=f"k{r.random()}"))
            case 6:
                found.append(
                    If(Const(True), random_body(r, depth - 1, in_loop), random_body(r, depth - 1, in_loop))
                )
            case 7:
                jump = (r.choice((Break(), Continue())),) if in_loop else ()
                found.append(If(Const(True), (*random_body(r, 0, False), *jump)))
    return tuple(found)


def tree_of(body: Body, owner: Node | None = None) -> Block:
    block = whole(owner)
    for op in body:
        node = Node(op, block)
        block.nodes.append(node)
        inside = (op.body,) if isinstance(op, For) else (op.then, op.otherwise) if isinstance(op, If) else ()
        node.inner.extend(tree_of(b, node) for b in inside if b)
    return block


@dataclass
class Run:
    """One execution, with random decisions; ``most``: the largest number of groups met at each wait."""

    random: random.Random
    most: dict[Node, int]
    groups: int = 0

    def body(self, block: Block) -> str:
        for node in block.nodes:
            match node.op:
                case MmaCommit():
                    self.groups += 1
                case MmaWait(pending=n):
                    self.most[node] = max(self.most.get(node, 0), self.groups)
                    self.groups = min(self.groups, n)
                case For():
                    for _ in range(self.random.randrange(4)):
                        if self.body(node.inner[0]) == "break":
                            break
                case If():
                    ways = [*node.inner, *([None] if len(node.inner) < 2 else [])]
                    way = self.random.choice(ways)
                    if way is not None and (jump := self.body(way)):
                        return jump
                case Break():
                    return "break"
                case Continue():
                    return "continue"
        return ""


def bodies_with_waits() -> Iterator[Body]:
    r = random.Random(11)
    for _ in range(40):
        yield random_body(r, 2, False)


def test_groups_in_flight_are_the_most_of_any_run() -> None:
    for body in bodies_with_waits():
        root, met = tree_of(body), dict[Node, int]()
        counted = _Count()
        counted.body(root, 0)
        for seed in range(60):
            Run(random.Random(seed), met).body(root)
        for node, most in met.items():
            assert counted.at[node] >= min(most, 8), body


@pytest.mark.parametrize("jump", [Break(), Continue()])
def test_a_group_leaves_a_loop_by_a_jump(jump: Op) -> None:
    """Behind the loop, or at the start of its next iteration."""
    skipped = If(Const(True), (MmaCommit(), jump))
    root = tree_of((loop(UNKNOWN, MmaWait(0), skipped, MmaWait(0)), MmaWait(0)))
    count = _Count()
    count.body(root, 0)
    assert list(count.at.values()) == [1, 1, 1]
