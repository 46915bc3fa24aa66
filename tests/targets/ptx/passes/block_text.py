"""Blocks as text, for tests of one pass: the operations of a block go in, and come out, as IR text.

A plan of a copy is written ``@engine(level, threads)``, such as ``{@cp.async(block, 128)}``; boxes of TMA and what
the plan counts follow as further arguments.
"""

from __future__ import annotations

import re
from textwrap import dedent, indent

from tilemma.ir.parser import parse_kernel
from tilemma.ir.printer import print_kernel
from tilemma.ir.tile import Kernel

PARAMETERS = "global f32 x[M, K], global f32 y[M, K]"
# The operations that synchronisation inserts.
SYNC = ("barrier", "copy_commit", "copy_wait", "proxy_fence", "mma_fence", "mma_commit", "mma_wait", "bulk_wait")
_SHORT = re.compile(r"@([\w.]+)\(([\w-]+), (\d+)((?:, [^()]*(?:\([^()]*\))?)*)\)")
_LONG = re.compile(
    r"plan = CopyPlan\(engine = ([\w.]+), vector = 4, level = ([\w-]+), threads = (\d+)((?:, [^()]*(?:\([^()]*\))?)*)\)"
)


def kernel(body: str, parameters: str = PARAMETERS, head: str = "parallel (b: 1) : block") -> Kernel:
    long = r"plan = CopyPlan(engine = \1, vector = 4, level = \2, threads = \3\4)"
    inside = indent(dedent(_SHORT.sub(long, body)).strip("\n"), " " * 4)
    return parse_kernel(f"kernel k({parameters}) {{\n  {head} {{\n{inside}\n  }}\n}}\n")


def text(k: Kernel) -> str:
    """The operations of the block."""
    lines = print_kernel(k).rstrip("\n").split("\n")[2:-2]
    return _LONG.sub(r"@\1(\2, \3\4)", dedent("\n".join(lines)))


def without(body: str, names: tuple[str, ...] = SYNC) -> str:
    """``body`` without the operations of these names."""
    return "\n".join(line for line in body.split("\n") if not line.strip().split(" ")[0].startswith(names))
