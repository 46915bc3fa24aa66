"""Products of sm_120: narrow floats and block scales, against sums over the elements in f64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from harness import execute, ptx_for

from tilemma import machine
from tilemma.machine.isa import fragments, sparse

NUMPY: dict[str, Any] = {
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn, "e2m1": ml_dtypes.float4_e2m1fn,
}  # fmt: skip
RNG = np.random.default_rng(5)


def tile(rows: int, k: int, name: str) -> Any:
    return RNG.integers(-3, 4, (rows, k)).astype(np.float32).astype(NUMPY[name])


def contained(x: Any, name: str) -> Any:
    """Elements in containers of 8 bits: 4-bit ones stand in bits 2 to 5."""
    return x.view(np.uint8) << (2 if name == "e2m1" else 0)


def operands(tiles: list[Any], packed: bool, k: int) -> dict[str, Any]:
    """Registers of A, B and C by the name of an input."""
    kind = "u4" if packed else "u8"
    codes = [t.astype(np.int64) for t in tiles[:2]]
    a = fragments.pack(codes[0][fragments.mma_fragment((16, 8, k), "A", kind)], kind)
    b = fragments.pack(codes[1].T[fragments.mma_fragment((16, 8, k), "B", kind)], kind)
    c = tiles[2][fragments.mma_fragment((16, 8, k), "C", "f32")].astype(np.float32).view(np.uint32)
    columns = np.concatenate([a, b, c], axis=1)
    return {f"b32/{i}": np.ascontiguousarray(columns[:, i]) for i in range(columns.shape[1])}


def run(opcode: str, inputs: dict[str, Any], tail: str, assembles: Any, *, registers_of_b: int = 2) -> Any:
    version, end = "8.7", 4 + registers_of_b
    of_a, of_b, of_c = (", ".join(f"%i{i}" for i in r) for r in (range(4), range(4, end), range(end, end + 4)))
    code = f"{opcode} {{%o0, %o1, %o2, %o3}}, {{{of_a}}}, {{{of_b}}}, {{{of_c}}}{tail};"
    kinds = ["b32"] * len(inputs)
    assembles(ptx_for(code, ["b32"] * 4, kinds, "sm_120a", version), "sm_120a")
    out = np.stack(execute(code, ["b32"] * 4, inputs, "sm_120a", version), axis=1).view(np.float32)
    full = np.zeros((16, 8))
    full[fragments.mma_fragment((16, 8, 32), "D", "f32")] = out
    return full


@pytest.mark.parametrize("a", NUMPY)
@pytest.mark.parametrize("b", ["e4m3", "e2m3", "e2m1"])
def test_containers_of_eight_bits(a: str, b: str, assembles: Callable[[str, str], None]) -> None:
    x, y, c = tile(16, 32, a), tile(8, 32, b), RNG.integers(-9, 9, (16, 8))
    got = run(
        f"mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.{a}.{b}.f32",
        operands([contained(x, a), contained(y, b), c], False, 32), "", assembles,
    )  # fmt: skip
    assert (got == x.astype(float) @ y.astype(float).T + c).all()


# Kind, K, element, scales along K, type of the scales, byte-id and thread-id of A and of B.
SCALED = [
    ("mxf8f6f4", 32, "e3m2", 1, "ue8m0", (3, 1), (2, 3)),
    ("mxf8f6f4", 32, "e4m3", 1, "ue8m0", (0, 0), (1, 0)),
    ("mxf4", 64, "e2m1", 2, "ue8m0", (2, 0), (0, 2)),
    ("mxf4nvf4", 64, "e2m1", 2, "ue8m0", (0, 1), (2, 1)),
    ("mxf4nvf4", 64, "e2m1", 4, "ue4m3", (0, 1), (0, 3)),
]


@pytest.mark.parametrize(("kind", "k", "name", "count", "scale", "at_a", "at_b"), SCALED)
def test_scales_of_blocks(
    kind: str,
    k: int,
    name: str,
    count: int,
    scale: str,
    at_a: Any,
    at_b: Any,
    assembles: Callable[[str, str], None],
) -> None:
    x, y, c = tile(16, k, name), tile(8, k, name), RNG.integers(-9, 9, (16, 8))
    packed = k == 64
    inputs = operands([*(t.view(np.uint8) if packed else contained(t, name) for t in (x, y)), c], packed, k)
    # Bytes that no selector names hold another scale.
    exponents = RNG.integers(0, 4, (2, 32, 4))
    codes = (exponents + 126 if scale == "ue8m0" else (exponents + 6) << 3).astype(np.uint8)
    values = codes.view(ml_dtypes.float8_e8m0fnu if scale == "ue8m0" else ml_dtypes.float8_e4m3fn).astype(float)
    inputs |= {f"b32/{10 + i}": codes[i].copy().view(np.uint32)[:, 0] for i in range(2)}
    got = run(
        f"mma.sync.aligned.m16n8k{k}.row.col.kind::{kind}.block_scale.scale_vec::{count}X.f32.{name}.{name}.f32.{scale}",
        inputs, f", %i10, {{{at_a[0]}, {at_a[1]}}}, %i11, {{{at_b[0]}, {at_b[1]}}}", assembles,
    )  # fmt: skip
    row, column = np.arange(16), np.arange(8)
    of_a = values[0][4 * (row % 8) + 2 * at_a[1] + row // 8][:, at_a[0] : at_a[0] + count]
    of_b = values[1][4 * column + at_b[1]][:, at_b[0] : at_b[0] + count]
    blocks = [t.astype(float).reshape(len(t), count, -1) for t in (x, y)]
    want = np.einsum("ms,msk,ns,nsk->mn", of_a, blocks[0], of_b, blocks[1]) + c
    assert (got == want).all()


# Kind and elements of the sparse forms; byte-id and thread-id of A's scale and of B's (none without scales).
SPARSE: list[tuple[str, str, str, Any]] = [
    ("f8f6f4", "e5m2", "e2m3", None),
    ("f8f6f4", "e2m1", "e4m3", None),
    ("mxf8f6f4", "e4m3", "e4m3", ((2, 1), (1, 3))),
    ("mxf8f6f4", "e2m1", "e3m2", ((0, 0), (3, 2))),
]


def sparse_inputs(a: str, b: str, packed: bool = False) -> tuple[dict[str, Any], Any]:
    """Registers of A (two of four columns, or of four pairs of them), B, C and the metadata; A times B plus C."""
    k, pattern, kind = (128, "s4", "u4") if packed else (64, "e4m3", "u8")
    kept = np.sort(RNG.permuted(np.tile(np.arange(4), (16, 16, 1)), axis=2)[..., :2], axis=2)
    fields = kept[..., 0] | kept[..., 1] << 2
    x, y, c = tile(16, k // 2, a), tile(8, k, b), RNG.integers(-9, 9, (16, 8))
    dense = np.zeros((16, k))
    np.put_along_axis(dense, sparse.stored_columns(fields, pattern), x.astype(float), axis=1)
    held = [t.view(np.uint8) if packed else contained(t, name) for t, name in ((x, a), (y, b))]
    columns = [
        fragments.pack(codes.astype(np.int64)[fragments.mma_fragment((16, 8, depth), letter, kind)], kind)
        for codes, depth, letter in ((held[0], k // 2, "A"), (held[1].T, k, "B"))
    ]
    columns.append(c[fragments.mma_fragment((16, 8, k), "C", "f32")].astype(np.float32).view(np.uint32))
    lane, shift = sparse.metadata_map(k, pattern, 0)
    metadata = np.zeros(32, np.uint32)
    np.bitwise_or.at(metadata, lane, (fields << shift).astype(np.uint32))
    words = np.concatenate([*columns, metadata[:, None]], axis=1)
    inputs = {f"b32/{i}": np.ascontiguousarray(words[:, i]) for i in range(words.shape[1])}
    return inputs, (dense, y.astype(float), c)


@pytest.mark.parametrize(("kind", "a", "b", "at"), SPARSE)
def test_sparse_products(kind: str, a: str, b: str, at: Any, assembles: Callable[[str, str], None]) -> None:
    inputs, (x, y, c) = sparse_inputs(a, b)
    scaled, types, tail = "", f"f32.{a}.{b}.f32", ", %i12, 0"
    rows, columns = np.ones((16, 1)), np.ones((8, 1))
    if at is not None:
        codes = RNG.integers(124, 131, (2, 32, 4)).astype(np.uint8)
        inputs |= {f"b32/{13 + i}": codes[i].copy().view(np.uint32)[:, 0] for i in range(2)}
        scaled, types = ".block_scale.scale_vec::1X", f"{types}.ue8m0"
        (byte_a, half), (byte_b, thread) = at
        tail += f", %i13, {{{byte_a}, {half}}}, %i14, {{{byte_b}, {thread}}}"
        values, row = 2.0 ** (codes.astype(float) - 127), np.arange(16)
        rows = values[0][4 * (row % 8) + 2 * half + row // 8, byte_a][:, None]
        columns = values[1][4 * np.arange(8) + thread, byte_b][:, None]
    opcode = f"mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.kind::{kind}{scaled}.{types}"
    got = run(opcode, inputs, tail, assembles, registers_of_b=4)
    assert (got == (rows * x) @ (columns * y).T + c).all()


@pytest.mark.parametrize(
    ("kind", "count", "scale"), [("mxf4", 2, "ue8m0"), ("mxf4nvf4", 2, "ue8m0"), ("mxf4nvf4", 4, "ue4m3")]
)
def test_sparse_products_of_packed_elements(
    kind: str, count: int, scale: str, assembles: Callable[[str, str], None]
) -> None:
    """A block of scales spans a half or a quarter of the columns of the whole A."""
    inputs, (x, y, c) = sparse_inputs("e2m1", "e2m1", packed=True)
    exponents = RNG.integers(0, 4, (2, 32, 4))
    codes = (exponents + 126 if scale == "ue8m0" else (exponents + 6) << 3).astype(np.uint8)
    values = codes.view(ml_dtypes.float8_e8m0fnu if scale == "ue8m0" else ml_dtypes.float8_e4m3fn).astype(float)
    inputs |= {f"b32/{13 + i}": codes[i].copy().view(np.uint32)[:, 0] for i in range(2)}
    got = run(
        f"mma.sp::ordered_metadata.sync.aligned.m16n8k128.row.col.kind::{kind}.block_scale.scale_vec::{count}X"
        f".f32.e2m1.e2m1.f32.{scale}",
        inputs, ", %i12, 0, %i13, {0, 1}, %i14, {0, 2}", assembles, registers_of_b=4,
    )  # fmt: skip
    row, column = np.arange(16), np.arange(8)
    of_a = values[0][4 * (row % 8) + 2 + row // 8][:, :count]
    of_b = values[1][4 * column + 2][:, :count]
    blocks = [t.reshape(len(t), count, -1) for t in (x, y)]
    assert (got == np.einsum("ms,msk,ns,nsk->mn", of_a, blocks[0], of_b, blocks[1]) + c).all()


def test_sparse_products_that_sum_in_f16(assembles: Callable[[str, str], None]) -> None:
    """The form that sm_120a takes without the name of its kind."""
    inputs, (x, y, c) = sparse_inputs("e4m3", "e5m2")
    words = np.stack([inputs[f"b32/{i}"] for i in range(8, 12)], axis=1).view(np.float32).astype(np.float16)
    inputs = {k: v for k, v in inputs.items() if int(k[4:]) not in (10, 11)}
    inputs |= {
        f"b32/{8 + i}": np.ascontiguousarray(words[:, 2 * i : 2 * i + 2]).view(np.uint32)[:, 0] for i in (0, 1)
    }
    inputs["b32/10"] = inputs.pop("b32/12")
    code = (
        "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.f16.e4m3.e5m2.f16 "
        "{%o0, %o1}, {%i0, %i1, %i2, %i3}, {%i4, %i5, %i6, %i7}, {%i8, %i9}, %i10, 0;"
    )
    kinds = ["b32"] * len(inputs)
    assembles(ptx_for(code, ["b32"] * 2, kinds, "sm_120a", "8.7"), "sm_120a")
    out = np.stack(execute(code, ["b32"] * 2, inputs, "sm_120a", "8.7"), axis=1).view(np.float16)
    full = np.zeros((16, 8))
    full[fragments.mma_fragment((16, 8, 64), "D", "f16")] = out
    assert (full == x @ y.T + c).all()
    with pytest.raises(machine.HazardError, match="D f32"):
        execute(code, ["b32"] * 2, inputs, "sm_90a", "8.7")


def test_sparse_metadata_that_falls_is_refused(assembles: Callable[[str, str], None]) -> None:
    inputs, _ = sparse_inputs("e4m3", "e4m3")
    inputs["b32/12"] = np.full(32, 0x44444441, np.uint32)
    opcode = "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.kind::f8f6f4.f32.e4m3.e4m3.f32"
    with pytest.raises(machine.HazardError, match="rising"):
        run(opcode, inputs, ", %i12, 0", assembles, registers_of_b=4)


def test_what_the_kinds_do_not_have_is_refused() -> None:
    inputs = {f"b32/{i}": np.zeros(32, np.uint32) for i in range(12)}
    form = "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.f32.e4m3.e4m3.f32.ue8m0"
    regs = (
        "{%o0, %o1, %o2, %o3}, {%i0, %i1, %i2, %i3}, {%i4, %i5}, {%i6, %i7, %i8, %i9}, %i10, {0, 0}, %i11, {0, 0};"
    )
    for text, arch, what in (
        (f"{form} {regs}", "sm_90a", "sm_120a"),
        (f"{form.replace('k32', 'k64')} {regs}", "sm_120a", "m16n8k32"),
        (f"{form.replace('ue8m0', 'ue4m3')} {regs}", "sm_120a", "ue8m0"),
        (f"{form.replace('.block_scale', '')} {regs}", "sm_120a", "scales"),
        (f"{form} {regs}".replace("%i10, {0, 0}", "%i10, {0, 2}"), "sm_120a", "thread-id 2"),
    ):
        with pytest.raises(machine.HazardError, match=what):
            execute(text, ["b32"] * 4, inputs, arch, "8.7")
