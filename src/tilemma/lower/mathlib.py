"""The math library."""

from __future__ import annotations

from tilemma.ir.expr import Call
from tilemma.lower.context import Lowering
from tilemma.lower.emitter import Value


def call(lo: Lowering, x: Call) -> Value:
    raise NotImplementedError(x.name)


def float_remainder(lo: Lowering, a: Value, b: Value, kind: str) -> Value:
    raise NotImplementedError
