"""The FP32 units against the tensor cores: one product, by FMA and by each type that tensor cores multiply.

FMA is that of cuBLAS (torch, tf32 off) and that of tilemma; factors are relative to the faster one.

    python bench/units.py --json docs/performance/units.json --svg docs/performance/units.svg

Where `ops` takes the type it computes the product; for the others it is the kernel below, which the compiler
pipelines.  Random normal data (integers from -100 to 100), K contiguous; medians of single launches, the L2 cache
flushed before each, the contestants taking turns.  Every result is checked against float64 on a sample of rows
before.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tilemma as tm
from tilemma import cdiv, dma, foreach, mma, ops, parallel, shared
from tilemma.arithmetic.packing import unpack

SIZE = 4096


@tm.kernel
def product(
    lhs: tm.Global["T", "M", "K"],
    rhs: tm.Global["T", "N", "K"],
    output: tm.Global["OUT", "M", "N"],
    *,
    T="f16",
    ACC="f16",
    OUT="f16",
    FAST=False,
    TILE_M=128,
    TILE_N=128,
    TILE_K=64,
):
    """output = lhs x rhs transposed, by two warpgroups a block."""
    for i, j in parallel(cdiv(lhs.shape[0], TILE_M), cdiv(rhs.shape[0], TILE_N), level="block"):
        a_s, b_s = shared(T, TILE_M, TILE_K), shared(T, TILE_N, TILE_K)
        mc = mma.fill(0.0, ACC, fast=FAST)
        for k in foreach(cdiv(lhs.shape[1], TILE_K)):
            dma.copy(lhs.subspan(TILE_M, TILE_K).at(i, k), a_s)
            dma.copy(rhs.subspan(TILE_N, TILE_K).at(j, k), b_s)
            for p in parallel(2, level="group-4"):
                mma.row.row(mc, mma.load(a_s.subspan(TILE_M // 2, TILE_K).at(p, 0)), mma.load(b_s))
        for p in parallel(2, level="group-4"):
            mma.store(mc, output.subspan(TILE_M // 2, TILE_N).at(2 * i + p, j))


@dataclass
class Unit:
    """One way to compute the product: ``by`` "FMA", "FMA, cuBLAS" or "tensor cores", ``type`` of the operands,
    ``sum`` of the accumulator.  ``kernel``: compile-time values of `product`, None for `ops`."""

    by: str
    type: str
    sum: str
    out: str
    kernel: dict[str, Any] | None = None
    us: float = 0.0
    tflops: float = 0.0
    times_fma: float = 0.0
    share_of_bound: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.type} into {self.sum}, {self.by}"


UNITS = (
    Unit("FMA", "f32", "f32", "f32"),
    Unit("FMA, cuBLAS", "f32", "f32", "f32"),
    Unit("tensor cores", "f64", "f64", "f64"),
    Unit("tensor cores", "tf32", "f32", "f32"),
    Unit("tensor cores", "bf16", "f32", "bf16"),
    Unit("tensor cores", "f16", "f32", "f16"),
    Unit("tensor cores", "f16", "f16", "f16", {"T": "f16", "ACC": "f16", "OUT": "f16", "TILE_N": 256}),
    Unit("tensor cores", "f8_e4m3", "f32", "bf16"),
    Unit(
        "tensor cores", "f8_e5m2", "f32", "bf16",
        {"T": "f8_e5m2", "ACC": "f32", "OUT": "bf16", "FAST": True, "TILE_K": 128},
    ),
    Unit("tensor cores", "s8", "s32", "s32"),
    Unit("tensor cores", "u8", "s32", "s32", {"T": "u8", "ACC": "s32", "OUT": "s32", "TILE_K": 128}),
    Unit("tensor cores", "s4", "s32", "s32", {"T": "s4", "ACC": "s32", "OUT": "s32", "TILE_K": 128}),
    Unit("tensor cores", "b1", "s32", "s32", {"T": "b1", "ACC": "s32", "OUT": "s32", "TILE_K": 512}),
)  # fmt: skip


def contestant(unit: Unit, size: int) -> tuple[Callable[[], Any], Callable[[], float]]:
    """The call, and the share of the error bound that its result takes on a sample of rows."""
    import torch

    names = {"tf32": "float32", "f8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2"}
    names |= {t: tm.dtypes.dtype(t).library_name for t in ("f64", "f32", "f16", "bf16", "s8", "u8", "s32")}
    kind, out_kind = getattr(torch, names.get(unit.type, "uint8")), getattr(torch, names[unit.out])
    per_byte = tm.dtypes.dtype(unit.type).per_byte
    if per_byte > 1:
        a, b = (torch.randint(0, 256, (size, size // per_byte), device="cuda", dtype=kind) for _ in "ab")
    elif tm.dtypes.dtype(unit.type).is_integer:
        low = 0 if unit.type == "u8" else -100
        a, b = (torch.randint(low, 101, (size, size), device="cuda", dtype=kind) for _ in "ab")
    else:
        a, b = (torch.randn(size, size, device="cuda", dtype=torch.float32).to(kind) for _ in "ab")
    out = torch.empty(size, size, device="cuda", dtype=out_kind)
    if unit.by == "FMA, cuBLAS":
        torch.backends.cuda.matmul.allow_tf32 = False
        run = lambda: torch.mm(a, b.t(), out=out)  # noqa: E731
    elif unit.kernel is not None:
        run = lambda: product(a, b, out, **unit.kernel)  # noqa: E731
    elif unit.type == "f8_e4m3":
        run = lambda: ops.scaled_matmul(a, b.t(), 1.0, 1.0, out=out, out_dtype=out_kind)  # noqa: E731
    else:
        options = {"compute": "tf32"} if unit.type == "tf32" else {}
        run = lambda: ops.matmul(a, b.t(), out=out, **options)  # noqa: E731

    def share() -> float:
        run()
        rows = torch.linspace(0, size - 1, 32, device="cuda").long()
        left, right = (x.double() if per_byte == 1 else unpacked(x, unit.type) for x in (a, b))
        left, right = left[rows], right.t()
        bound = tm.testing.error_bound(left, right, unit.sum, unit.out, operands=unit.type)
        exact = tm.testing.reference("mk,kn->mn", left, right)
        return float(tm.testing.share_of_bound(out[rows].double(), exact, 1.001 * bound))

    return run, share


def unpacked(x: Any, name: str) -> Any:
    """Packed elements as float64."""
    import torch

    return torch.from_numpy(unpack(x.cpu().numpy(), tm.dtypes.dtype(name)).astype("float64")).cuda()


def measured(size: int, rounds: int) -> list[Unit]:
    from timing import flushed

    calls = []
    for unit in UNITS:
        run, share = contestant(unit, size)
        unit.share_of_bound = share()
        assert unit.share_of_bound <= 1, unit
        calls.append(run)
    for unit, us in zip(UNITS, flushed(calls, rounds), strict=True):
        unit.us, unit.tflops = us, 2.0 * size**3 / us / 1e6
    fma = min(unit.us for unit in UNITS if unit.by.startswith("FMA"))
    for unit in UNITS:
        unit.times_fma = fma / unit.us
        print(
            f"{unit.name:40} {unit.us:9.1f} us {unit.tflops:7.1f} TFLOP/s {unit.times_fma:6.2f} x FMA", flush=True
        )
    return list(UNITS)


def picture(data: dict[str, Any]) -> str:
    """Speeds as bars, as SVG."""
    rows: Sequence[dict[str, Any]] = data["units"]
    left, right, high, top = 210, 400, 20, 30
    width, height = left + right + 170, top + high * len(rows) + 12
    most = max(r["tflops"] for r in rows)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{left}" y="18">{data["size"]}^3, {data["versions"]["device"]}, TFLOP/s or TOP/s</text>',
    ]
    for i, r in enumerate(rows):
        y, size = top + high * i, right * r["tflops"] / most
        color = "#b80" if r["by"].startswith("FMA") else "#26c"
        lines += [
            f'<text x="{left - 6}" y="{y + 13}" text-anchor="end">{r["type"]} into {r["sum"]}, {r["by"]}</text>',
            f'<rect x="{left}" y="{y + 3}" width="{size:.1f}" height="{high - 6}" fill="{color}"/>',
            f'<text x="{left + size + 5:.1f}" y="{y + 13}">{r["tflops"]:.0f}, {r["times_fma"]:.1f} x FMA</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=SIZE)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    from timing import facts

    found = [asdict(u) for u in measured(options.size, options.rounds)]
    data = {"versions": facts(), "size": options.size, "rounds": options.rounds, "units": found}
    if options.json:
        options.json.write_text(json.dumps(data, indent=1) + "\n")
    if options.svg:
        options.svg.write_text(picture(data))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
