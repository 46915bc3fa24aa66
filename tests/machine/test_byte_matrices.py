"""ldmatrix and stmatrix of bytes and of packed 6- and 4-bit elements, and copies of chosen bytes (sm_100a)."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilemma import machine

pytestmark = pytest.mark.usefixtures("engine")

HEAD = """.version 9.0
.target sm_120a
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 o) {{
  .reg .b64 %d<8>; .reg .b32 %r<40>; .reg .f32 %f<8>; .reg .b16 %h<2>; .reg .pred %p<4>;
  .shared .align 128 .b8 s[1024];
  ld.param.u64 %d0, [a]; ld.param.u64 %d1, [b]; ld.param.u64 %d2, [o]; mov.u32 %r0, %tid.x; mov.u32 %r1, s;
  // Each lane brings 16 bytes of `a` to the same place in shared memory, and reads from there.
  mad.wide.u32 %d3, %r0, 16, %d0; mad.lo.u32 %r2, %r0, 16, %r1; mad.wide.u32 %d4, %r0, 16, %d2;
  ld.global.v4.u32 {{%r4, %r5, %r6, %r7}}, [%d3];
{code}
  ret;
}}"""
TO_SHARED = "st.shared.v4.u32 [%r2], {%r4, %r5, %r6, %r7}; bar.warp.sync 0xffffffff;\n"
RESULT = "st.global.v4.u32 [%d4], {%r8, %r9, %r10, %r11};"
RNG = np.random.default_rng(3)


def run(code: str, a: np.ndarray, b: np.ndarray | None = None, size: int = 512) -> np.ndarray:
    out = np.zeros(size, np.uint8)
    args = {"a": a, "b": np.zeros(1, np.uint32) if b is None else b, "o": out}
    launch = {"grid": 1, "block": 32, "read_only": ["a", "b"]}
    machine.run(HEAD.format(code=code), launch, args)
    return out


def packed(rows: np.ndarray, bits: int) -> np.ndarray:
    """Rows of 16 numbers as 16 bytes each: the elements from bit 0 on, then ones (padding that is not read)."""
    out = np.full((len(rows), 16), 0xFF, np.uint8)
    for row, to in zip(rows, out, strict=True):
        number = sum(int(x) << (bits * i) for i, x in enumerate(row)) | ((1 << 128) - (1 << 16 * bits))
        to[:] = np.frombuffer(number.to_bytes(16, "little"), np.uint8)
    return out


@pytest.mark.parametrize(("source", "bits"), [("b8", 8), ("b8x16.b6x16_p32", 6), ("b8x16.b4x16_p64", 4)])
def test_transposed_matrices_of_bytes(source: str, bits: int) -> None:
    rows = RNG.integers(0, 1 << bits, (32, 16)).astype(np.uint8)
    memory = rows if bits == 8 else packed(rows, bits)
    load = f"ldmatrix.sync.aligned.m16n16.x2.trans.shared.{source} {{%r8, %r9, %r10, %r11}}, [%r2];\n"
    out = run(TO_SHARED + load + RESULT, memory).reshape(32, 4, 4)
    for lane in range(32):
        for register in range(4):
            column = lane // 4 + 8 * (register % 2)
            first = 16 * (register // 2) + 4 * (lane % 4)
            assert (out[lane, register] == rows[first : first + 4, column]).all()


@pytest.mark.parametrize(("source", "bits"), [("b6x16_p32", 6), ("b4x16_p64", 4)])
def test_packed_elements_become_bytes(source: str, bits: int) -> None:
    rows = RNG.integers(0, 1 << bits, (32, 16)).astype(np.uint8)
    load = f"ldmatrix.sync.aligned.m8n16.x4.shared.b8x16.{source} {{%r8, %r9, %r10, %r11}}, [%r2];\n"
    out = run(TO_SHARED + load + RESULT, packed(rows, bits)).reshape(32, 4, 4)
    for lane in range(32):
        for matrix in range(4):
            first = 4 * (lane % 4)
            assert (out[lane, matrix] == rows[8 * matrix + lane // 4, first : first + 4]).all()


def test_a_product_of_a_transposed_operand() -> None:
    """B in memory as [K, N]: the registers 0 and 2 are its columns 0 to 7, 1 and 3 its columns 8 to 15."""
    a, b = (RNG.integers(-3, 4, shape).astype(ml_dtypes.float8_e4m3fn) for shape in ((16, 32), (32, 16)))
    rows = np.empty((32, 16), np.uint8)
    for lane in range(32):
        at = [(lane // 4 + 8 * (i % 2), 4 * (lane % 4) + 16 * (i // 2)) for i in range(4)]
        rows[lane] = np.concatenate([a.view(np.uint8)[r, c : c + 4] for r, c in at])
    code = """mad.wide.u32 %d5, %r0, 16, %d1; ld.global.v4.u32 {%r12, %r13, %r14, %r15}, [%d5];
      st.shared.v4.u32 [%r2], {%r12, %r13, %r14, %r15}; bar.warp.sync 0xffffffff;
      ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8 {%r8, %r9, %r10, %r11}, [%r2];
      mov.f32 %f0, 0f00000000;
      mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%f0, %f1, %f2, %f3}, {%r4, %r5, %r6, %r7},
        {%r8, %r10}, {%f0, %f0, %f0, %f0};
      mov.f32 %f4, 0f00000000;
      mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%f4, %f5, %f6, %f7}, {%r4, %r5, %r6, %r7},
        {%r9, %r11}, {%f4, %f4, %f4, %f4};
      mad.wide.u32 %d6, %r0, 32, %d2;
      st.global.v4.f32 [%d6], {%f0, %f1, %f2, %f3}; st.global.v4.f32 [%d6+16], {%f4, %f5, %f6, %f7};"""
    out = run(code, rows, np.ascontiguousarray(b.view(np.uint8)), 1024).view(np.float32).reshape(32, 2, 4)
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    for lane in range(32):
        for tile in range(2):
            for i in range(4):
                row, column = lane // 4 + 8 * (i // 2), 8 * tile + 2 * (lane % 4) + i % 2
                assert out[lane, tile, i] == wanted[row, column]


def test_bytes_are_stored_transposed() -> None:
    """Lanes hold four matrices of 16 x 8 as `mma` leaves sums; each of its columns becomes 16 bytes."""
    tiles = RNG.integers(0, 256, (4, 16, 8)).astype(np.uint8)
    registers = np.empty((32, 4, 4), np.uint8)
    for lane in range(32):
        for i in range(4):
            registers[lane, :, i] = tiles[:, lane // 4 + 8 * (i // 2), 2 * (lane % 4) + i % 2]
    code = """stmatrix.sync.aligned.m16n8.x4.trans.shared.b8 [%r2], {%r4, %r5, %r6, %r7}; bar.warp.sync 0xffffffff;
      ld.shared.v4.u32 {%r8, %r9, %r10, %r11}, [%r2];"""
    out = run(code + RESULT, registers)
    assert (out.reshape(4, 8, 16) == tiles.transpose(0, 2, 1)).all()


@pytest.mark.parametrize("mask", [0xFFFF, 0x8001, 0x00F0, 0])
def test_a_mask_of_bytes(mask: int) -> None:
    code = f"""{TO_SHARED} fence.proxy.async.shared::cta; bar.warp.sync 0xffffffff; setp.ne.u32 %p0, %r0, 0;
      mov.b16 %h0, {mask}; @%p0 bra END;
      cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%d2], [%r1], 512, %h0;
      cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; END:"""
    rows = RNG.integers(1, 256, (32, 16)).astype(np.uint8)
    chosen = np.array([mask >> i & 1 for i in range(16)], bool)
    assert (run(code, rows).reshape(32, 16) == np.where(chosen, rows, 0)).all()


def test_a_missing_barrier_before_the_load_is_named() -> None:
    code = """xor.b32 %r3, %r2, 16; st.shared.v4.u32 [%r3], {%r4, %r5, %r6, %r7};
      ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8 {%r8, %r9, %r10, %r11}, [%r2];\n"""
    rows = np.zeros((32, 16), np.uint8)
    args = {"a": rows, "b": np.zeros(1, np.uint32), "o": np.zeros(512, np.uint8)}
    text = HEAD.format(code=code + RESULT)
    found = machine.run(text, {"grid": 1, "block": 32, "read_only": ["a", "b"]}, args, collect=True)
    assert {h.code for h in found.hazards} == {"race"}
