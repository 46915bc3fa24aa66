"""Statements as the programs of `refused`: in a block, a group or a thread of either language."""

from __future__ import annotations

PARAMETERS = {
    "co": "global f16 [64, 64] b, global f32 [64, 64] c, int n",
    "py": 'b: tm.Global["f16", 64, 64], c: tm.Global["f32", 64, 64], n: tm.Int',
}


def block(statements: str) -> str:
    return f"parallel p by 1 : block {{ {statements} }}"


def group(statements: str) -> str:
    return block(f"parallel w by 1 : group {{ {statements} }}")


def thread(statements: str) -> str:
    return block(f"parallel i by 32 : thread {{ {statements} }}")


def python(statements: str, levels: int = 1) -> str:
    """Statements of a block, or of a group (2) or thread (3) in it; parted by `; `."""
    heads = ["for p in parallel(1, level='block'):", "for w in parallel(1, level='group'):"][:levels]
    lines = [*heads, *statements.split("; ")]
    return "\n".join("    " * (min(n, len(heads)) + 1) + line for n, line in enumerate(lines))
