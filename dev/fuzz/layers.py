"""Public functions of layouts, instructions, `tilemma.cute`, assembler and machine, for `bench/fuzz_api.py`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from tensor_layouts import ComposedLayout, Layout, Swizzle

import tilemma as tm
from dev.fuzz.api import EXAMPLES, LAUNCH, PTX, half
from dev.fuzz.language_calls import Function
from tilemma import assemble, cute, layouts
from tilemma.atoms import MmaAtom, contract, select, tensor_map_swizzle
from tilemma.dtypes import from_numpy, promote
from tilemma.launch import Launch
from tilemma.layouts import Descriptor


def _same(value: Any) -> Any:
    return value


def odd_layouts() -> dict[str, Callable[[], Any]]:
    """Layouts of the tensor-layouts library that functions do not expect."""
    plain = {
        "one mode": Layout(4),
        "no stride": Layout((4, 4), (0, 0)),
        "negative stride": Layout((4, 4), (-4, 1)),
        "nested": Layout(((2, 2), (2, (2, 3))), ((1, 32), (2, (4, 8)))),
        "large": Layout((1 << 20, 1 << 20)),
        "unit": Layout((1, 1)),
        "three modes": Layout((64, 64, 3)),
        "odd sizes": Layout((7, 13)),
    }
    inner = Layout((64, 64), (64, 1))
    swizzled = {
        "swizzled": ComposedLayout(Swizzle(3, 3, 3), inner),
        "odd swizzle": ComposedLayout(Swizzle(5, 1, 7), inner),
        "swizzle behind": ComposedLayout(inner, Layout((4, 4))),
        "swizzled with an offset": ComposedLayout(Swizzle(3, 3, 3), inner, offset=5),
    }
    return {f"layout: {name}": partial(_same, value) for name, value in (plain | swizzled).items()}


_RACE = """.version 8.0
.target sm_80
.address_size 64
.visible .entry f(.param .u64 out)
{
    .reg .b32 %r<3>;
    .reg .b64 %q<2>;
    .shared .b32 s;
    ld.param.u64 %q1, [out];
    mov.u32 %r1, %tid.x;
    st.shared.u32 [s], 7;
    ld.shared.u32 %r2, [s];
    st.global.u32 [%q1], %r2;
    ret;
}
"""


def _raced() -> dict[str, Any]:
    return {"out": np.zeros(64, np.uint32)}


def functions() -> list[Function]:
    """The public functions of the layers, with good arguments."""
    tile = layouts.shared_layout("f16", 64, 64)
    ss, rr = (tm.atoms[n] for n in ("SM90_64x64x16_F16F16F16_SS", "SM80_16x8x16_F32F16F16F32_TN"))
    assert isinstance(ss, MmaAtom) and isinstance(rr, MmaAtom)
    atom = layouts.canonical_atom(16, "K", 128)
    plane = layouts.tile_to_shape(atom, (128, 64))
    mma = cute.TiledMMA(ss)
    thread = mma.thr_slice(0)
    part = thread.partition_A(plane)
    a = rr.a
    names = {"d": ["%d0", "%d1", "%d2", "%d3"], "a": ["%a0", "%a1", "%a2", "%a3"], "b": ["%b0", "%b1"]}
    copy = next(iter(tm.atoms.copies()))
    small = {"out": np.zeros(64, np.uint32), "n": 3}
    view = tm.machine.inspect(PTX, LAUNCH, small, 17)
    recording = tm.machine.record(PTX, LAUNCH, small, lanes=[((0, 0, 0), 0, 1)])
    cache = assemble.DiskCache("fuzz")
    plan = tm.load(str(EXAMPLES / "co" / "matmul_wgmma_2group.co")).compile("sm_90a").launches[0].to_json()
    return [
        Function("layouts.canonical_atom", layouts.canonical_atom, (16, "K", 128)),
        Function("layouts.tile_to_shape", layouts.tile_to_shape, (atom, (64, 64), (0, 1))),
        Function("layouts.tile_to_shape(keywords)", layouts.tile_to_shape, (), {"atom": atom, "shape": (64, 64, 3), "order": None}),
        Function("layouts.bank_conflicts", layouts.bank_conflicts, ([0, 4, 8], 4)),
        Function("layouts.offsets", layouts.offsets, (atom,)),
        Function("layouts.cute_str", layouts.cute_str, (atom, 16)),
        Function("layouts.flat_modes", lambda x: list(layouts.flat_modes(x)), (Layout((4, 4)),)),
        Function("layouts.element_swizzle", layouts.element_swizzle, (16, 128)),
        Function("Descriptor", Descriptor, (16, 16, 1024), {"base_offset": 0, "swizzle": 128}),
        Function("Descriptor.decode", Descriptor.decode, (1,)),
        Function("Descriptor.at", Descriptor(16, 16, 1024).at, (16,)),
        Function("SharedLayout.offset", tile.offset, (1, 2)),
        Function("SharedLayout.swizzled", tile.swizzled, (64,)),
        Function("SharedLayout.descriptor", tile.descriptor, (0, 0, 64, 16)),
        Function("cute.TiledMMA", cute.TiledMMA, (ss, (2, 1, 1))),
        Function("TiledMMA.thr_slice", mma.thr_slice, (1,)),
        Function("TiledMMA.repetitions", mma.repetitions, ((128, 64, 64),)),
        Function("TiledMMA.issues", mma.issues, ((128, 64, 64),)),
        Function("TiledMMA.owners", mma.owners, ("C", (64, 64, 16))),
        Function("ThrMMA.partition", thread.partition, ("A", plane)),
        Function("ThrMMA.partition_B", thread.partition_B, (plane,)),
        Function("ThrMMA.fragment_A", thread.fragment_A, (part,)),
        Function("ThrMMA.fragment_C", thread.fragment_C, (part,)),
        Function("ThrMMA.descriptors", lambda *x: list(thread.descriptors(*x)), ("A", plane, "K")),
        Function("cute.thread_value", cute.thread_value, (rr, a)),
        Function("cute.tile_refusals", cute.tile_refusals, (ss, (64, 64, 64), ("K", 128), ("K", 128))),
        Function("cute.check_tile", cute.check_tile, (ss, (64, 64, 64), ("K", 128), ("K", 128))),
        Function("atoms.select", select, (), {"arch": "sm_90a", "kind": "wgmma", "threads": 128, "a": "f16", "b": "f16", "d": "f32", "tile": (64, 64, 16), "a_from": "shared", "a_major": "K", "b_major": "K"}),
        Function("atoms.mma", lambda x: next(tm.atoms.mma(x), None), ("wgmma",)),
        Function("atoms.contract", contract, (rr, a.gather(half(16, 16)), rr.b.gather(half(8, 16)), rr.c.gather(np.zeros((16, 8), np.float32)))),
        Function("atoms.tensor_map_swizzle", tensor_map_swizzle, (128,)),
        Function("MmaAtom.emit", rr.emit, (), names),
        Function("MmaAtom.emit(qualifiers)", ss.emit, (), {"d": [f"%d{i}" for i in range(16)], "a": "%a", "b": "%b", "scale_d": 1, "scale_a": 1, "trans_b": 0}),
        Function("MmaAtom.runs_on", rr.runs_on, ("sm_90a",)),
        Function("CopyAtom.emit", copy.emit, (), {"address": "%a", "registers": ["%r0"] * (copy.fragment.registers if copy.fragment else 0), "source": "" if copy.fragment else "%s"}),
        Function("CopyAtom.lane_of_row", copy.lane_of_row, (0,)),
        Function("Operand.coordinates", a.coordinates, (0, 0)),
        Function("Operand.place", a.place, (0,)),
        Function("Operand.gather", a.gather, (half(16, 16),)),
        Function("Operand.scatter", a.scatter, (half(32, 8),)),
        Function("assemble.begin", _begun, (PTX, "sm_80"), {"options": (), "cache": None}),
        Function("assemble.find_tool", assemble.find_tool, ("ptxas",)),
        Function("assemble.sass_counts", assemble.sass_counts, ("/*0000*/ NOP ;",), {"modifiers": False}),
        Function("assemble.local_memory_accesses", assemble.local_memory_accesses, ("/*0000*/ STL [R1], R2 ;",)),
        Function("assemble.source_position", assemble.source_position, (PTX, 7)),
        Function("assemble.ptx_span", assemble.ptx_span, (PTX, 7, "f")),
        Function("assemble.register_a_in_flight", assemble.register_a_in_flight, (PTX,)),
        Function("assemble.driver_image", assemble.driver_image, (PTX,)),
        Function("DiskCache", assemble.DiskCache, ("x", None)),
        Function("DiskCache.get", cache.get, ("0" * 64,)),
        Function("DiskCache.put", cache.put, ("0" * 64, b"x")),
        Function("machine.record", tm.machine.record, (PTX, LAUNCH, small), {"lanes": [((0, 0, 0), 0, 1)], "arch": "sm_80", "seed": 0, "schedule": "late", "strict": False, "max_steps": 1000}),
        Function("machine.Recording.array", recording.array, ("out",)),
        Function("machine.Recording.writers", recording.writers, ("out", 1)),
        Function("machine.Recording.first_difference", recording.first_difference, ("out", 7, 0.5)),
        Function("machine.Recording.trace", recording.trace, ((0, 0, 0), 0, 1)),
        Function("machine.Recording.register", recording.register, ("%r2", ((0, 0, 0), 0, 1), 12), {"occurrence": 0}),
        Function("machine.View.writer", view.writer, (0,)),
        Function("machine.triton", tm.machine.triton, (print,), {"schedules": 1}),
        Function("machine.triton(call)", lambda *x, **k: tm.machine.triton(print, **k)[x[0]](*x[1:]), ((1,), half(4)), {"schedules": 1, "arch": "sm_80", "seed": 0}),
        Function("machine.advise", tm.machine.advise, (_RACE, LAUNCH, _raced(), tm.machine.check(_RACE, LAUNCH, _raced(), schedules=1)), {"wanted": None, "schedules": 1, "strict": False, "arch": "sm_80", "trials": 2}),
        Function("ops.gated_matmul", tm.ops.gated_matmul, (half(64, 64), half(64, 64), half(64, 64)), {"activation": "silu", "out": None, "out_dtype": None, "alpha": 1.0, "beta": 0.0, "c": None, "bias": None}),
        Function("ops.sparse_matmul", tm.ops.sparse_matmul, (tm.sparse.compress(tm.sparse.prune(half(16, 64))), half(64, 64)), {"out": None, "out_dtype": None, "bias": None, "activation": None, "fast": True}),
        Function("ops.mixed_matmul", tm.ops.mixed_matmul, (half(8, 64), tm.quantize(half(64, 16), "s4", 32)), {"out": None, "out_dtype": None, "bias": None, "activation": None}),
        Function("ops.conv2d", tm.ops.conv2d, (half(1, 5, 5, 16), half(8, 3, 3, 16)), {"stride": 1, "padding": 1, "dilation": 1, "groups": 1, "bias": None, "activation": None}),
        Function("quantize", tm.quantize, (half(64, 16), "s4", 32), {"zeros": True, "scales": "f32"}),
        Function("Quantized", lambda *x: tm.Quantized(*x).dequantize(), (np.zeros((8, 16), np.int8), np.ones((1, 8), np.float32), None, "s8", 16, (16, 8))),
        Function("sparse.prune", tm.sparse.prune, (half(16, 64),)),
        Function("sparse.compress", tm.sparse.compress, (tm.sparse.prune(half(16, 64)), "u32")),
        Function("sparse.prepack", tm.sparse.prepack, (np.zeros((16, 2), np.uint32), "prepack")),
        Function("sparse.unpack", tm.sparse.unpack, (np.zeros((16, 2), np.uint32), "prepack_v2_fp8")),
        Function("sparse.Sparse", lambda *x: tm.sparse.Sparse(*x).decompress(), (half(16, 32), np.zeros((16, 2), np.uint32), (16, 64))),
        Function("machine.View.register", view.register, ("%r1",)),
        Function("machine.View.lane", view.lane, (0,)),
        Function("machine.View.tile", view.tile, (0, 64, 16, "f16", "K")),
        Function("machine.View.matrix", view.matrix, ([0, 2], "f16")),
        Function("machine.inspect(keywords)", lambda **k: tm.machine.inspect(PTX, LAUNCH, {"out": np.zeros(64, np.uint32), "n": 3}, **k), (), {"line": 17, "warp": 0, "cta": (0, 0, 0), "occurrence": 0, "arch": "sm_80", "seed": 0, "schedule": "late", "strict": False, "max_steps": 1000}),
        Function("machine.Struct", lambda fields: tm.machine.run(_STRUCT, LAUNCH, {"s": tm.machine.Struct(fields)}), ({0: np.zeros(4, np.uint32), 8: np.uint32(1)},)),
        Function("Launch.from_json", Launch.from_json, (plan,)),
        Function("Launch.from_json(fields)", lambda **k: Launch.from_json(k), (), plan),
        Function("dtypes.from_numpy", from_numpy, ("f2",)),
        Function("dtypes.promote", promote, (tm.dtypes.dtype("f16"), tm.dtypes.dtype("f32"))),
        Function("testing.grain_of", tm.testing.grain_of, (half(4, 4),)),
        Function("targets.registered", tm.targets.registered),
    ]  # fmt: skip


_STRUCT = PTX.replace(".param .u64 out, .param .u32 n", ".param .align 8 .b8 s[16]").replace("[out]", "[s]").replace("[n]", "[s+8]")  # fmt: skip


def _begun(*args: Any, **keywords: Any) -> None:
    with assemble.begin(*args, **keywords) as assembly:
        assembly.result()
