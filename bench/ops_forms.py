"""The products of f32, tf32 and f64 beside torch (cuBLAS), in one process, interleaved.

    python bench/ops_forms.py --json ops_forms.json
    python bench/ops_forms.py --only wide

Random normal data; the method is that of `bench/ops_types.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from ops_types import Contest, main

from tilemma import ops, testing


def rows_of(a: torch.Tensor) -> torch.Tensor:
    """At most 32 rows, spread over ``a``."""
    return torch.linspace(0, len(a) - 1, min(len(a), 32), device="cuda").long()


def wide(kind: torch.dtype, size: int, compute: str | None) -> Contest:
    a, b = (torch.randn(size, size, device="cuda", dtype=kind) for _ in range(2))
    b = b.t()
    out, other = torch.empty_like(a), torch.empty_like(a)
    name = {torch.float64: "f64", torch.float32: "f32"}[kind]

    def peer(_: int) -> Any:
        torch.backends.cuda.matmul.allow_tf32 = compute == "tf32"
        return torch.mm(a, b, out=other)

    def share() -> float:
        ops.matmul(a, b, out=out, compute=compute)
        rows = rows_of(a)
        bound = testing.error_bound(a[rows], b, name, name, operands=compute)
        return testing.share_of_bound(out[rows], testing.reference("mk,kn->mn", a[rows], b), bound)

    return Contest(
        "wide", f"{compute or name} {size}^3", 2.0 * size**3, float(size * size * a.itemsize),
        lambda i: ops.matmul(a, b, out=out, compute=compute), {"torch.mm": peer}, share,
        lambda: ops.plan(a, b, out=out, compute=compute).chosen,
    )  # fmt: skip


def contests(groups: list[str]) -> Iterator[tuple[str, str, Callable[[], Contest]]]:
    for size in (4096, 8192):
        yield "wide", f"tf32 {size}", lambda s=size: wide(torch.float32, s, "tf32")
        yield "wide", f"f32 {size}", lambda s=size: wide(torch.float32, s, None)
        yield "wide", f"f64 {size}", lambda s=size: wide(torch.float64, s, None)


if __name__ == "__main__":
    sys.exit(main(contests, __doc__.splitlines()[0]))
