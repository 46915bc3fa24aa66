"""The main loops of a consumer and of the producer written by hand, to be assembled and counted, not to be run.

The ring of examples/py/persistent.py: four slots, 128x256x64 tiles, f16 operands with 128-byte swizzle, A's slots
from byte 0, B's from 65536, mbarriers "full" from 229376 and "empty" 32 bytes further.  In clusters of two: a
block loads half of B into both, and a warpgroup releases a slot, behind a barrier of its own, in both.
"""

from __future__ import annotations

SLOTS, FULL, EMPTY = 4, 229376, 229408
# High word of a K-major 128-byte-swizzle descriptor: swizzle 1 in the top bits, 1024 bytes between groups of rows.
HIGH, LBO = 0x40000040, 0x10000


def _step(i: int, accumulators: str) -> str:
    """One wgmma, 16 elements (32 bytes) further along K than the one before."""
    more = "1" if i else "%acc"
    ahead = "".join(
        f"""
  cvt.u64.u32 %d{x}, %l{x};
  or.b64 %d{x}, %d{x}, {HIGH << 32};"""
        + (f"\n  add.u64 %d{x}, %d{x}, {2 * i};" if i else "")
        for x in "ab"
    )
    return f"""{ahead}
  wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {{{accumulators}}}, %da, %db, {more}, 1, 1, 0, 0;"""


def producer_ptx() -> str:
    """PTX of a kernel that is the producer's loop: one warp goes along, its elected lane acts."""
    copy = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
    return f"""\
.version 8.0
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry hand(
  .param .align 128 .b8 a_map[128], .param .align 128 .b8 b_map[128], .param .u32 depth, .param .u32 way)
.maxntid 384, 1, 1
.minnctapersm 1
.reqnctapercluster 2, 1, 1
.explicitcluster
{{
  .reg .u32 %k, %n, %slot, %parity, %base, %ring, %a, %b, %row, %col, %rank, %half, %at, %way;
  .reg .b16 %both;
  .reg .u64 %map_a, %map_b;
  .reg .pred %more, %ready, %wrap, %chosen;
  ld.param.u32 %n, [depth];
  ld.param.u32 %way, [way];
  mov.u32 %at, 0;
  mov.b64 %map_a, a_map;
  cvta.param.u64 %map_a, %map_a;
  mov.b64 %map_b, b_map;
  cvta.param.u64 %map_b, %map_b;
  mov.u32 %base, smem;
  mov.u32 %row, %ctaid.x;
  mov.u32 %col, %ctaid.y;
  mov.u32 %rank, %cluster_ctarank;
  mad.lo.u32 %col, %rank, 128, %col;
  mad.lo.u32 %half, %rank, 16384, %base;
  mov.b16 %both, 3;
  elect.sync _|%chosen, -1;
  mov.u32 %slot, 0;
  mov.u32 %parity, 0;
  mov.u32 %k, 0;
STEP:
  shl.b32 %ring, %slot, 3;
  add.u32 %ring, %ring, %base;
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %ready, [%ring+{EMPTY}], %parity;
  @!%ready bra WAIT;
  @%chosen mbarrier.arrive.expect_tx.shared::cta.b64 _, [%ring+{FULL}], 49152;
  mad.lo.u32 %a, %slot, 16384, %base;
  mad.lo.u32 %b, %slot, 32768, %half;
  @%chosen {copy} [%a], [%map_a, {{%at, %row}}], [%ring+{FULL}];
  @%chosen {copy}.multicast::cluster [%b+65536], [%map_b, {{%at, %col}}], [%ring+{FULL}], %both;
  add.u32 %slot, %slot, 1;
  setp.eq.u32 %wrap, %slot, {SLOTS};
  @%wrap xor.b32 %parity, %parity, 1;
  selp.b32 %slot, 0, %slot, %wrap;
  add.u32 %at, %at, %way;
  add.u32 %k, %k, 1;
  setp.lt.u32 %more, %k, %n;
  @%more bra STEP;
  ret;
}}
"""


def consumer_ptx() -> str:
    """PTX of a kernel that is this loop, and stores so that nothing is left out."""
    accumulators = ", ".join(f"%d{i}" for i in range(128))
    return f"""\
.version 8.0
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry hand(.param .u64 out_at, .param .u32 steps)
.maxntid 384, 1, 1
.minnctapersm 1
.reqnctapercluster 2, 1, 1
.explicitcluster
{{
  .reg .f32 %d<128>;
  .reg .u32 %k, %n, %slot, %parity, %base, %full, %last, %a0, %b0, %x, %thread, %peer, %group, %la, %lb;
  .reg .u64 %da, %db, %out;
  .reg .pred %acc, %more, %ready, %first, %second, %release, %wrap, %held, %due;
  mov.u32 %thread, %tid.x;
  ld.param.u32 %n, [steps];
  ld.param.u64 %out, [out_at];
  mov.u32 %base, smem;
  and.b32 %x, %thread, 127;
  setp.eq.u32 %first, %x, 0;
  setp.eq.u32 %second, %x, 32;
  mov.u32 %x, %cluster_ctarank;
  xor.b32 %x, %x, 1;
  mapa.shared::cluster.u32 %peer, %base, %x;
  shr.u32 %x, %thread, 7;
  shfl.sync.idx.b32 %x, %x, 0, 31, -1;
  add.u32 %group, %x, 1;
  shl.b32 %x, %x, 13;
  add.u32 %x, %x, %base;
  shr.u32 %x, %x, 4;
  or.b32 %a0, %x, {LBO};
  shr.u32 %x, %base, 4;
  add.u32 %x, %x, {65536 >> 4};
  or.b32 %b0, %x, {LBO};
  mov.u32 %slot, 0;
  mov.u32 %parity, 0;
  mov.u32 %k, 0;
  mov.u32 %last, 0;
  setp.ne.u64 %held, %out, 0;
STEP:
  shl.b32 %full, %slot, 3;
  add.u32 %full, %full, %base;
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %ready, [%full+{FULL}], %parity;
  @!%ready bra WAIT;
  mad.lo.u32 %la, %slot, {16384 >> 4}, %a0;
  mad.lo.u32 %lb, %slot, {32768 >> 4}, %b0;
  setp.ne.u32 %acc, %k, 0;
  wgmma.fence.sync.aligned;{"".join(_step(i, accumulators) for i in range(4))}
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 1;
  bar.sync %group, 128;
  setp.ne.and.u32 %release, %k, 0, %first;
  mad.lo.u32 %x, %last, 8, %base;
  @%release mbarrier.arrive.shared::cta.b64 _, [%x+{EMPTY}];
  setp.ne.and.u32 %release, %k, 0, %second;
  mad.lo.u32 %x, %last, 8, %peer;
  @%release mbarrier.arrive.shared::cluster.b64 _, [%x+{EMPTY}];
  mov.u32 %last, %slot;
  setp.lt.and.u32 %due, %k, 4, %held;
  @%due bra.uni PIECE;
NEXT:
  setp.eq.u32 %due, %k, 0;
  @%due bra.uni PLACE;
PLACED:
  add.u32 %slot, %slot, 1;
  setp.eq.u32 %wrap, %slot, {SLOTS};
  @%wrap xor.b32 %parity, %parity, 1;
  selp.b32 %slot, 0, %slot, %wrap;
  add.u32 %k, %k, 1;
  setp.lt.u32 %more, %k, %n;
  @%more bra STEP;
  wgmma.wait_group.sync.aligned 0;
  mad.wide.u32 %out, %thread, 512, %out;
{chr(10).join(f"  st.global.f32 [%out+{4 * i}], %d{i};" for i in range(128))}
  ret;
PIECE:
  bar.sync %group, 128;
  st.global.u32 [%out], %k;
  fence.proxy.async.shared::cta;
  bar.sync %group, 128;
  bra.uni NEXT;
PLACE:
  div.u32 %x, %n, %group;
  st.shared.u32 [%base], %x;
  bra.uni PLACED;
}}
"""
