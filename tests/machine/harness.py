"""Runs one instruction on chosen operands in all lanes of a warp."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilemma import machine

BYTES = {"16": 2, "32": 4, "64": 8}


def width(kind: str) -> int:
    digits = {"f16x2": 4, "bf16x2": 4, "bf16": 2, "tf32": 4, "e4m3x2": 2, "e5m2x2": 2}
    return digits.get(kind) or max(2, int("".join(c for c in kind if c.isdigit())) // 8)


def register_type(kind: str) -> str:
    return f".b{8 * width(kind)}"


def ptx_for(code: str, outputs: list[str], inputs: list[str], arch: str, version: str) -> str:
    """PTX that loads ``%i0...`` for each lane, runs ``code`` and stores ``%o0...``."""
    lines = [f".version {version}\n.target {arch}\n.address_size 64"]
    params = [f".param .u64 i{n}" for n in range(len(inputs))] + [f".param .u64 o{n}" for n in range(len(outputs))]
    lines.append(
        f".visible .entry k({', '.join(params)}) {{\n  .reg .b64 %p<4>; .reg .b32 %lane; .reg .pred %q<8>;"
    )
    for letter, kinds in (("i", inputs), ("o", outputs)):
        lines += [f"  .reg {register_type(k)} %{letter}{n};" for n, k in enumerate(kinds)]
    lines.append("  .reg .b32 %t<16>; .reg .b16 %h<16>; .reg .b64 %d<16>;")
    lines.append("  mov.u32 %lane, %tid.x;")
    for n, kind in enumerate(inputs):
        w = width(kind)
        lines.append(
            f"  ld.param.u64 %p0, [i{n}]; mad.wide.u32 %p1, %lane, {w}, %p0; ld.global.b{8 * w} %i{n}, [%p1];"
        )
    lines.append(f"  {code}")
    for n, kind in enumerate(outputs):
        w = width(kind)
        lines.append(
            f"  ld.param.u64 %p0, [o{n}]; mad.wide.u32 %p1, %lane, {w}, %p0; st.global.b{8 * w} [%p1], %o{n};"
        )
    return "\n".join([*lines, "  ret;\n}"])


def execute(
    code: str,
    outputs: list[str],
    inputs: dict[str, Any],
    arch: str = "sm_90a",
    version: str = "8.6",
    **options: Any,
) -> list[Any]:
    """Outputs (raw unsigned words, [32]) of ``code`` on ``inputs``: kind.serial -> values of 32 lanes."""
    kinds = [name.split("/")[0] for name in inputs]
    ptx = ptx_for(code, outputs, kinds, arch, version)
    args: dict[str, Any] = {}
    for n, (kind, values) in enumerate(zip(kinds, inputs.values(), strict=True)):
        raw = np.ascontiguousarray(values)
        args[f"i{n}"] = (
            raw.view(f"u{width(kind)}") if raw.dtype.itemsize == width(kind) else raw.astype(f"u{width(kind)}")
        )
    results = [np.zeros(32, f"u{width(k)}") for k in outputs]
    args.update({f"o{n}": r for n, r in enumerate(results)})
    machine.run(ptx, {"grid": 1, "block": 32}, args, **options)
    return results
