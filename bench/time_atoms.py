"""Latency and throughput of every instruction of the catalogue: `src/tilemma/atoms/measured.json`.

    python bench/time_atoms.py --assemble        # PTX -> cubins in build/timing; needs no GPU
    python bench/time_atoms.py                   # run on this machine's GPU

Latency: clocks from one instruction to the next in a chain in which each needs the result of the one before, on
one warp or warpgroup; where C is of another type than D, with a conversion.  For wgmma that is from the
instruction to the end of the wait for its group; for ldmatrix from the address to the next address, an addition
included; for stmatrix the same with a load of what was stored; for cp.async to the end of its wait, from a line
that the cache has.
Throughput: multiply-adds a clock and SM of 16 warps with four chains each, or two warpgroups with one chain each.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import struct
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import proof_kernels as kernels
from proof_device import Cuda
from prove_atoms import assemble_all, cubin_path, module_of

from tilemma.atoms import CopyAtom, MmaAtom, catalogue
from tilemma.atoms.atom import Atom, Operand
from tilemma.layouts import shared_layout

ROOT = Path(__file__).resolve().parent.parent
TURNS = 32
# Instructions in an iteration of the loop: of one chain, of each of several, and of wgmma.
UNROLL = {"latency": 32, "rate": 16, "wgmma": 8}
# The threads and the chains of each that a measurement has.
WARPS, CHAINS, WARPGROUPS = 16, 4, 2
# Positions 2 and 3 of each four, or the upper one of each two.
METADATA = "0xEEEEEEEE"


def _start() -> list[str]:
    return [
        "  .reg .u32 %turn, %turns, %thread, %smem, %i;",
        "  .reg .u64 %out, %t0, %t1;",
        "  .reg .pred %more, %first;",
        "  mov.u32 %thread, %tid.x;",
        "  setp.eq.u32 %first, %thread, 0;",
        "  ld.param.u64 %out, [out_at];",
        "  ld.param.u32 %turns, [turns];",
        "  mov.u32 %turn, 0;",
        "  mov.u32 %smem, smem;",
    ]


def _timed(body: Iterable[str], results: Sequence[str], register: str, before: Sequence[str] = ()) -> list[str]:
    """A loop of ``turns`` over ``body``; its clocks to out[0], and every lane's results behind them."""
    return [
        "  bar.sync 0;",
        "  mov.u64 %t0, %clock64;",
        *before,
        "LOOP:",
        *body,
        "  add.u32 %turn, %turn, 1;",
        "  setp.lt.u32 %more, %turn, %turns;",
        "  @%more bra LOOP;",
        "  bar.sync 0;",
        "  mov.u64 %t1, %clock64;",
        "  sub.u64 %t1, %t1, %t0;",
        "  @%first st.global.u64 [%out], %t1;",
        "  mad.wide.u32 %out, %thread, 8, %out;",
        *(f"  st.global.{register} [%out + {8 + 8 * 512 * i}], {r};" for i, r in enumerate(results)),
        "  ret;",
    ]


def _constant(register: str, value: int) -> str:
    packed = struct.pack(">f", value) if register == "f32" else struct.pack(">d", value)
    return {"f32": "0f", "f64": "0d"}[register] + packed.hex().upper() if register[0] == "f" else str(value)


def of_registers(atom: MmaAtom, name: str, chains: int) -> str:
    """Warps with ``chains`` accumulators each.

    A and B are zeros that only memory knows, and every chain starts elsewhere and is stored: equal chains,
    and those without a use, the assembler makes one.  A and B of an emulated instruction change with each issue,
    or the assembler takes what it does with them out of the loop.
    """
    a, b = (kernels.names(x, o.registers) for x, o in (("a", atom.a), ("b", atom.b)))
    results = [[f"%d{j}_{i}" for i in range(atom.d.registers)] for j in range(chains)]
    lines = [*_start(), "  .reg .b32 %e, %zero, %c<8>;", *(kernels.declare(getattr(atom, x), x) for x in "ab")]
    lines += [f"  .reg .{atom.d.register} {', '.join(chain)};" for chain in results]
    for j, chain in enumerate(results):
        lines += [f"  mov.{atom.d.register} {r}, {_constant(atom.d.register, j)};" for r in chain]
    lines += [f"  ld.global.{atom.a.register} {r}, [%out];" for r in (*a, *b)]
    lines += ["  ld.global.b32 %zero, [%out];", f"  mov.b32 %e, {METADATA};"]
    body = []
    for _ in range(UNROLL["latency" if chains == 1 else "rate"]):
        for chain in results:
            if atom.emulated and atom.a.register == "b32":
                body += [f"  xor.b32 {r}, {r}, %zero;" for r in (*a, *b)]
            more = {"e": "%e"} if atom.e is not None else {}
            if atom.c.dtype is atom.d.dtype:
                body.append("  " + atom.emit(d=chain, a=a, b=b, c=chain, **more))
                continue
            c = kernels.names("c", atom.c.registers)
            body += [f"  cvt.rn.f16x2.f32 {r}, {chain[2 * i + 1]}, {chain[2 * i]};" for i, r in enumerate(c)]
            body.append("  " + atom.emit(d=chain, a=a, b=b, c=c, **more))
    lines += _timed(body, [r for chain in results for r in chain], atom.d.register)
    return kernels.entry(name, "u64 out_at, u32 turns", 32 if chains == 1 else 32 * WARPS, lines)


def of_warpgroups(atom: MmaAtom, name: str, groups: int) -> str:
    """``groups`` warpgroups, one chain each, on zeros; a wait for each instruction if there is one."""
    rs, d = atom.a.in_registers, kernels.names("d", atom.d.registers)
    more: dict[str, Any] = {"e": "%e"} if atom.e is not None else {}
    issue = "  " + atom.emit(d=d, a=kernels.names("a", 4) if rs else "%desca", b="%descb", scale_d=1, **more)
    wait = ["  wgmma.commit_group.sync.aligned;", f"  wgmma.wait_group.sync.aligned {groups - 1};"]
    lines = [
        *_start(),
        "  .reg .u64 %desca, %descb, %start;",
        "  .reg .b32 %e, %a<4>;",
        kernels.declare(atom.d, "d"),
        "  shl.b32 %i, %thread, 2;",
        "CLEAR:",
        "  add.u32 %turn, %smem, %i;",
        "  st.shared.u32 [%turn], 0;",
        f"  add.u32 %i, %i, {512 * groups};",
        f"  setp.lt.u32 %more, %i, {kernels.D_AT};",
        "  @%more bra CLEAR;",
        "  fence.proxy.async;",
        *kernels.descriptor("a", kernels.A_AT),
        *kernels.descriptor("b", kernels.B_AT),
        "  mov.u32 %turn, 0;",
        f"  mov.b32 %e, {METADATA};",
        *(f"  mov.b32 %a{i}, 0;" for i in range(4)),
        *(f"  mov.{atom.d.register} {r}, {_constant(atom.d.register, 0)};" for r in d),
    ]
    body = [*[issue] * UNROLL["wgmma"], *wait] if groups > 1 else [issue, *wait] * UNROLL["wgmma"]
    last = ["  wgmma.wait_group.sync.aligned 0;"] if groups > 1 else []
    lines += _timed(body, d, atom.d.register, ["  wgmma.fence.sync.aligned;"])
    at = lines.index("  bar.sync 0;", lines.index("LOOP:"))
    lines[at:at] = last
    return kernels.entry(name, "u64 out_at, u32 turns, u64 desc_a, u64 desc_b", 128 * groups, lines)


def of_copies(atom: CopyAtom, name: str) -> str:
    """One warp: what is stored and loaded are zeros, and the address of each copy is the one before plus such."""
    registers = kernels.names("r", atom.fragment.registers if atom.fragment else 1)
    lines = [
        *_start(),
        f"  .reg .b32 %at, %r<{len(registers)}>;",
        "  mad.lo.u32 %at, %thread, 16, %smem;",
        *(f"  st.shared.v4.u32 [%at + {i}], {{0, 0, 0, 0}};" for i in range(0, 2048, 512)),
        *(f"  mov.b32 {r}, 0;" for r in registers),
    ]
    if atom.kind == "cp.async":
        copy = [
            "  " + atom.emit(address="%at", source="%out"),
            "  cp.async.commit_group;",
            "  cp.async.wait_group 0;",
        ]
    else:
        copy = ["  " + atom.emit(address="%at", registers=registers)]
        copy += ["  ld.shared.u32 %r0, [%at];"] * (atom.kind == "stmatrix") + ["  add.u32 %at, %at, %r0;"]
    return kernels.entry(
        name, "u64 out_at, u32 turns", 32, [*lines, *_timed(copy * UNROLL["latency"], ["%at"], "u32")]
    )


def entries(atom: Atom) -> dict[str, str]:
    """The PTX of one record's entries by what they measure."""
    name = "time_" + atom.name.lower()
    if isinstance(atom, CopyAtom):
        return {"latency": of_copies(atom, name + "_latency")}
    both = {"latency": (of_warpgroups, 1), "rate": (of_warpgroups, WARPGROUPS)}
    if not atom.asynchronous:
        both = {"latency": (of_registers, 1), "rate": (of_registers, CHAINS)}
    return {what: make(atom, f"{name}_{what}", count) for what, (make, count) in both.items()}


def _tile(operand: Operand, rows: int) -> int:
    """The descriptor of a tile of zeros, K-major and swizzled by 128 bytes."""
    tile = shared_layout(operand.dtype, rows, 1024 // operand.dtype.bits, "K", 128)
    return tile.descriptor(0, 0, rows, 256 // operand.dtype.bits).encode()


def clocks(atom: Atom, what: str, run: Any) -> float:
    """Clocks of one iteration of the loop, the median of three runs."""
    threads, extra, shared = 32, [], 4096
    if isinstance(atom, MmaAtom):
        threads = 32 if what == "latency" else 32 * WARPS
        if atom.asynchronous:
            threads, shared = 128 if what == "latency" else 128 * WARPGROUPS, kernels.SHARED_BYTES
            a = 0 if atom.a.in_registers else _tile(atom.a, 64)
            extra = [("u64", a), ("u64", _tile(atom.b, atom.shape[1]))]
    found = []
    for _ in range(4):
        out = np.zeros(1 + 512 * 132, np.uint64)
        name = f"time_{atom.name.lower()}_{what}"
        run(module_of(atom), name, 1, threads, shared, [out, ("u32", TURNS), *extra])
        found.append(int(out[0]))
    return sorted(found[1:])[1] / TURNS


def measure(atom: Atom, run: Any) -> dict[str, float]:
    """The latency in clocks, and for a multiplying instruction the rate in multiply-adds per SM and clock."""
    asynchronous = isinstance(atom, MmaAtom) and atom.asynchronous
    issued = UNROLL["wgmma" if asynchronous else "latency"]
    found = {"latency": round(clocks(atom, "latency", run) / issued, 1)}
    if isinstance(atom, MmaAtom):
        m, n, k = atom.shape
        issued = UNROLL["wgmma"] * WARPGROUPS if asynchronous else UNROLL["rate"] * WARPS * CHAINS
        found["rate"] = float(f"{issued * m * n * k / clocks(atom, 'rate', run):.4g}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--assemble", action="store_true", help="only assemble; needs no GPU")
    parser.add_argument("--arch", default="sm_90a", help="PTX target; records that need another are left out")
    parser.add_argument("--only", default="", help="records whose name contains this")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "timing")
    parser.add_argument("--out", type=Path, default=ROOT / "src" / "tilemma" / "atoms" / "measured.json")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="modules assembled at the same time")
    options = parser.parse_args()
    started = time.perf_counter()
    atoms = [a for a in catalogue.values() if a.runs_on(options.arch) and options.only in a.name]
    groups: dict[str, list[str]] = {}
    for atom in atoms:
        groups.setdefault(module_of(atom), []).extend(entries(atom).values())
    texts = {name: kernels.module(options.arch, entries) for name, entries in groups.items()}
    folder = options.build / options.arch
    ready = list(assemble_all(texts, options.arch, folder, options.jobs))
    print(f"{len(ready)} modules assembled after {time.perf_counter() - started:.1f} s", file=sys.stderr)
    if options.assemble:
        return 0
    gpu = Cuda(lambda name: cubin_path(folder, name, texts[name]).read_bytes())
    facts = {**gpu.describe(), "arch": options.arch, "ptxas": (folder / "assembler.txt").read_text()}
    facts |= {"date": datetime.date.today().isoformat(), "source": "bench/time_atoms.py"}
    rows = ",\n".join(f"  {json.dumps(a.name)}: {json.dumps(measure(a, gpu.run))}" for a in atoms)
    options.out.write_text(f'{json.dumps(facts, indent=1)[:-2]},\n "records": {{\n{rows}\n }}\n}}\n')
    print(f"{len(atoms)} records in {time.perf_counter() - started:.1f} s: {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
