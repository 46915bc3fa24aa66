"""The model of products of some hundred rows by large weights, between those of `few_rows` and of `few_rounds`.

The geometric mean of the formula of `few_rows`, of that of `middle`, and of the general one of `plan`: their
products lie between those to which these were fitted, and each alone is wrong in another direction.
`bench/sweep_ops.py --kinds "hundreds of rows" --json sweep.json`, then ``--judge sweep.json``, compares its choice
with the fastest plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilemma.ops import few_rows, long_k, middle
from tilemma.ops.problem import Problem

if TYPE_CHECKING:
    from tilemma.ops.plan import Hardware, Plan

# Rows, at most.
MOST = 1023


def applies(p: Problem) -> bool:
    """Whether ``p`` is a product of this kind."""
    m, n, _ = p.shape
    simple = p.batch == 1 and len(p.outer) == 1 and not p.grouped and not p.promote
    types = p.lhs.dtype.bits == p.rhs.dtype.bits == 16 and p.lhs_major == p.rhs_major == "row"
    some = few_rows.ROWS < min(m, n) <= MOST
    return simple and types and some and not (middle.applies(p) or long_k.applies(p))


def knows(plan: Plan) -> bool:
    """Whether the model is for ``plan``."""
    return plan.kernel == "pipelined" and not plan.pack


def seconds(p: Problem, plan: Plan, on: Hardware, general: float) -> float:
    """The time of ``plan`` for ``p``, transposed already if the plan says so, which is ``general`` by the general
    formula."""
    few, middling = few_rows.timed(p, plan, on)[0].seconds, middle.seconds(p, plan, on)[0]
    return float((general * few * middling) ** (1 / 3))
