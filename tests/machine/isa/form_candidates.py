"""Statements of instructions that have no table of forms: combinations of modifiers, whether they exist or not.

A template is a text in which `(a|b)` stands for one of the alternatives and `[[a|b]]` for one of them or none.
Registers: %h 16 bits, %r 32, %d 64, %p predicates, %q 128.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

_CHOICE = re.compile(r"\(([^()\[\]]*)\)|\[\[([^()\[\]]*)\]\]")


def expanded(template: str) -> Iterator[str]:
    """All statements of a template; `/` stands for the bar between two destinations."""
    parts = _CHOICE.split(template)
    choices = []
    for i in range(0, len(parts) - 1, 3):
        one, maybe = parts[i + 1], parts[i + 2]
        choices.append(one.split("|") if one is not None else ["", *maybe.split("|")])
    for chosen in itertools.product(*choices):
        yield "".join(itertools.chain(*zip(parts[::3], (*chosen, ""), strict=True))).replace("/", "|")


_SCOPE = ".cta|.cluster|.gpu|.sys"
_L1 = ".L1::evict_normal|.L1::evict_unchanged|.L1::evict_first|.L1::evict_last|.L1::no_allocate"
_PREFETCH = ".L2::64B|.L2::128B|.L2::256B"

HINTS = (
    f"ld[[.weak|.volatile|.relaxed.gpu]][[.global|.shared|.const|.local]][[{_L1}]][[.L2::evict_last]]"
    f"[[{_PREFETCH}]][[.v2|.v4]].b32 %r0, [%d0];",
    f"ld.global[[.ca|.cg|.cs|.lu|.cv]][[.nc]][[{_L1}]][[.L2::cache_hint]][[{_PREFETCH}]].b32 %r0, [%d0], %d1;",
    f"ld.global[[.ca|.cg|.cs]][[.nc]][[{_L1}]][[.L2::cache_hint]][[{_PREFETCH}]].f32 %r0, [%d0];",
    "ld[[.global|.shared]][[.ca|.nc]][[.L2::cache_hint]].v2.b64 {%d4, %d5}, [%d0], %d1;",
    "ld.global.nc[[.L1::no_allocate]][[.L2::cache_hint]][[.L2::256B]].v4.u32 {%r0, %r1, %r2, %r3}, [%d0], %d1;",
    "ldu[[.global]][[.v2|.v4]].(b32|f32|u8) %r0, [%d0];",
    "ldu.global.v2.(b32|f64) {%r0, %r1}, [%d0];",
    f"st[[.weak|.volatile|.release.gpu]][[.global|.shared|.local]][[{_L1}]][[.L2::cache_hint]].b32 [%d0],"
    f" %r0, %d1;",
    f"st[[.global]][[.wb|.cg|.cs|.wt]][[{_L1}]][[.L2::evict_first]].b32 [%d0], %r0;",
    "st.global[[.L1::no_allocate]][[.L2::cache_hint]].v4.b32 [%d0], {%r0, %r1, %r2, %r3}, %d1;",
    "(atom|red).global[[.L2::cache_hint]].add.u32 %r0, [%d0], %r1, %d1;",
    "red[[.relaxed.gpu]].global.add[[.L2::cache_hint]].u32 [%d0], %r1, %d1;",
    "atom[[.acq_rel.gpu]].global.(add|cas|exch)[[.L2::cache_hint]].b32 %r0, [%d0], %r1, %r2, %d1;",
    "atom.global.exch[[.L2::cache_hint]].b32 %r0, [%d0], %r2, %d1;",
    "red.global.add[[.noftz]][[.L2::cache_hint]].f16x2 [%d0], %r1, %d1;",
    "prefetch[[.global|.local|.shared|.tensormap|.param.tensormap|.const.tensormap]][[.L1|.L2]] [%d0];",
    "prefetch[[.global]](.L2::evict_last|.L2::evict_normal|.L2::evict_first|.L1::evict_last) [%d0];",
    "prefetchu(.L1|.L2) [%d0];",
    "applypriority[[.global]][[.L2::evict_normal|.L2::evict_last]] [%d0], (128|64);",
    "discard[[.global]][[.L2|.L1]] [%d0], (128|64);",
    "createpolicy.fractional(.L2::evict_last|.L2::evict_normal|.L2::evict_first|.L2::evict_unchanged)"
    "[[.L2::evict_unchanged|.L2::evict_first|.L2::evict_last]].b64 %d0[[, 0.5|, 1.0]];",
    "createpolicy.range[[.global]](.L2::evict_last|.L2::evict_normal|.L2::evict_first|.L2::evict_unchanged)"
    "[[.L2::evict_unchanged|.L2::evict_first]].b64 %d0, [%d1], %r0, %r1;",
    "createpolicy.cvt.L2.b64 %d0, %d1;",
)
BARRIERS = (
    "(bar|barrier)[[.cta]].(sync|arrive)[[.aligned]] (0|%r0|15|16)[[, 64|, %r1|, 33]];",
    "(bar|barrier)[[.cta]].red.(popc)[[.aligned]].(u32|b32) %r0, 1[[, 64]], [[!]]%p0;",
    "(bar|barrier)[[.cta]].red.(and|or|xor)[[.aligned]].(pred|u32) %p1, 1[[, 64]], [[!]]%p0;",
    "bar.warp.sync (%r0|0xffffffff|15);",
    "barrier.cluster.(arrive|wait)[[.release|.acquire|.relaxed]][[.aligned]];",
    "barrier.cluster.(sync)[[.aligned]];",
    "(membar).(cta|gl|sys|gpu);",
    "membar.proxy.(alias|async);",
    f"fence[[.sc|.acq_rel|.acquire|.release]][[{_SCOPE}]];",
    "fence.(acquire|release)[[.sync_restrict::shared::cluster|.sync_restrict::shared::cta]][[.cluster|.cta]];",
    "fence.proxy.(alias|async|async.global|async.shared::cta|async.shared::cluster|async.shared);",
    "fence.proxy.async::generic.(acquire|release).sync_restrict::shared::(cta|cluster).cluster;",
    f"fence.proxy.tensormap::generic.(acquire|release)[[{_SCOPE}]];",
    f"fence.proxy.tensormap::generic.acquire[[{_SCOPE}]] [%d0], (128|64);",
    "fence.mbarrier_init[[.release]][[.cluster|.cta]];",
    "(griddepcontrol).(launch_dependents|wait|arrive);",
    "nanosleep.(u32|b32) (%r0|40);",
    "setmaxnreg.(inc|dec)[[.sync]][[.aligned]].u32 (40|24|232|256|41);",
    "elect.sync (%r0|_)/%p0, (%r1|0xffffffff);",
    "elect.sync %r0, %r1;",
    "(pmevent|pmevent.mask) 3;",
    "(trap|brkpt|exit);",
)
_SHARED = ".shared|.shared::cta|.shared::cluster"
MBARRIERS = (
    f"mbarrier.(init|inval)[[{_SHARED}]].b64 [%d30][[, %r1|, 1]];",
    f"mbarrier.(arrive|arrive_drop)[[.release|.relaxed]][[.cta|.cluster]][[{_SHARED}]].b64 (%d0|_),"
    f" [%d30][[, %r1|, 2]];",
    f"mbarrier.(arrive|arrive_drop).expect_tx[[.release|.relaxed]][[.cta|.cluster]][[{_SHARED}]].b64"
    f" (%d0|_), [%d30], %r1;",
    f"mbarrier.(arrive|arrive_drop).noComplete[[.release|.relaxed]][[.cta]][[{_SHARED}]].b64 %d0, [%d30]"
    f"[[, %r1]];",
    f"mbarrier.(expect_tx|complete_tx)[[.relaxed]][[.cta|.cluster]][[{_SHARED}]].b64 [%d30], (%r1|16);",
    f"mbarrier.(test_wait|try_wait)[[.acquire|.relaxed]][[.cta|.cluster]][[{_SHARED}]].b64 %p0, [%d30],"
    f" %d0[[, %r2]];",
    f"mbarrier.(test_wait|try_wait).parity[[.acquire|.relaxed]][[.cta|.cluster]][[{_SHARED}]].b64 %p0,"
    f" [%d30], (%r1|1)[[, %r2]];",
    "mbarrier.pending_count.b64 %r0, %d0;",
    f"cp.async.mbarrier.arrive[[.noinc]][[{_SHARED}]].b64 [%d30];",
)
COPIES = (
    f"cp.async.(ca|cg)[[{_SHARED}]][[.global]][[.L2::cache_hint]][[{_PREFETCH}]] [%d30], [%d0],"
    f" (4|8|16|32)[[, %r1|, 0]];",
    "cp.async.(ca|cg).shared[[::cta]].global[[.L2::cache_hint]] [%d30], [%d0], 16[[, %r1]], %d1;",
    "cp.async.(ca|cg).shared.global [%d30], [%d0], 16, [[!]]%p0;",
    "cp.async.(commit_group|wait_all);",
    "cp.async.wait_group (0|3|%r0);",
    "cp.async.bulk[[.shared::cluster|.shared::cta]].global.mbarrier::complete_tx::bytes[[.multicast::cluster]]"
    "[[.L2::cache_hint]] [%d30], [%d0], (%r1|64), [%d32][[, %h0]][[, %d1]];",
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%d30], [%d31], (%r2|64), [%d33];",
    "cp.async.bulk.global.shared::cta.bulk_group[[.L2::cache_hint]][[.cp_mask]] [%d0], [%d30], (%r1|64)"
    "[[, %d1]][[, %h0]];",
    "cp.async.bulk.(commit_group);",
    "cp.async.bulk.wait_group[[.read]] (0|2);",
    "cp.async.bulk.prefetch.L2.global[[.L2::cache_hint]] [%d0], (%r0|64)[[, %d1]];",
    "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    "(.add|.min|.max|.inc|.dec|.and|.or|.xor)(.u32|.s32|.u64|.s64|.b32|.b64|.f16) [%d30], [%d31], %r2, [%d33];",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group[[.L2::cache_hint]](.add|.min|.max|.inc|.and)[[.noftz]]"
    "(.u32|.s32|.u64|.s64|.b32|.b64|.f16|.bf16|.f32|.f64) [%d0], [%d31], %r2[[, %d1]];",
    "cp.async.bulk.tensor.(1d|2d).shared::(cluster|cta).global[[.tile|.im2col]].mbarrier::complete_tx::bytes"
    "[[.multicast::cluster]][[.cta_group::1]][[.L2::cache_hint]] [%d30], [%d0, {%r1, %r2}], [%d33][[,"
    " %h0]][[, %d1]];",
    "cp.async.bulk.tensor.(3d|4d).shared::cluster.global[[.tile|.im2col]].mbarrier::complete_tx::bytes"
    "[[.multicast::cluster]] [%d30], [%d0, {%r1, %r2, %r3}], [%d34][[, {%h1}]][[, %h0]];",
    "cp.async.bulk.tensor.(2d|3d).global.shared::cta[[.tile|.im2col_no_offs]].bulk_group[[.L2::cache_hint]]"
    " [%d0, {%r1, %r2[[, %r3]]}], [%d30][[, %d1]];",
    "cp.reduce.async.bulk.tensor.(1d|2d).global.shared::cta(.add|.min|.max|.inc|.dec|.and|.or|.xor)"
    "[[.tile]].bulk_group[[.L2::cache_hint]] [%d0, {%r1, %r2}], [%d30][[, %d1]];",
    "cp.async.bulk.prefetch.tensor.(1d|2d).L2.global[[.tile]][[.L2::cache_hint]] [%d0, {%r1, %r2}][[, %d1]];",
    "tensormap.replace.tile.(global_address|rank|box_dim|global_dim|global_stride|element_stride|elemtype|"
    "interleave_layout|swizzle_mode|fill_mode|swizzle_atomicity)[[.global|.shared::cta]].b1024.(b32|b64)"
    " [%d0][[, 0]], (%r1|%d1|3);",
    f"tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release[[{_SCOPE}]].sync.aligned"
    f" [%d0], [%d30], 128;",
)
WARPS = (
    "shfl.sync.(up|down|bfly|idx).(b32|u32|f32|b64) %r0[[/%p0]], %r1, (%r2|1), (31|%r3), (%r4|0xffffffff);",
    "shfl.(up|idx).b32 %r0, %r1, %r2, 31;",
    "vote[[.sync]].(all|any|uni).(pred|b32) %p0, [[!]]%p1[[, %r0|, 0xffffffff]];",
    "vote[[.sync]].ballot.(b32|u32) %r0, [[!]]%p1[[, %r0]];",
    "match.(any|all).sync.(b32|b64|u32) %r0, %r1, %r2;",
    "match.all.sync.(b32|b64|u32) %r0/%p0, %r1, %r2;",
    "match.(any|all).sync.b64 %r0[[/%p0]], %d1, %r2;",
    "activemask.(b32|u32) %r0;",
    "redux.sync.(add|min|max|and|or|xor)(.u32|.s32|.b32|.f32|.u64) %r0, %r1, %r2;",
    "fns.b32 %r0, %r1, %r2, %r3;",
    "isspacep"
    "[[.global|.local|.shared|.shared::cta|.shared::cluster|.const|.param|.param::entry|.generic]] %p0, %d0;",
    "movmatrix.sync.aligned.m8n8[[.trans]].b16 %r0, %r1;",
    "ldmatrix.sync.aligned.(m8n8|m8n16|m16n16|m16n8).(x1|x2|x4)[[.trans]][[.shared|.shared::cta|.global]]"
    ".(b16|b8|b8x16.b6x16_p32|b8x16.b4x16_p64) {%r0[[, %r1|, %r1, %r2, %r3]]}, [%d34];",
    "stmatrix.sync.aligned.(m8n8|m8n16|m16n16|m16n8).(x1|x2|x4)[[.trans]][[.shared|.shared::cta]]"
    ".(b16|b8|b8x16.b6x16_p32) [%d34], {%r0[[, %r1|, %r1, %r2, %r3]]};",
    "wmma.load.(a|b).sync.aligned.(row|col).(m16n16k16|m8n32k16|m32n8k16)"
    "[[.global|.shared|.shared::cta]].(f16|bf16|s8)"
    " {%r0, %r1, %r2, %r3[[, %r4, %r5, %r6, %r7]]}, [%d0][[, %r9]];",
    "wmma.store.d.sync.aligned.(row|col).(m16n16k16|m8n32k16)[[.global|.shared]].(f32|s32|f16) [%d0], "
    "{%r0, %r1, %r2, %r3[[, %r4, %r5, %r6, %r7]]}[[, %r9]];",
    "wmma.load.(a|b).sync.aligned.(row|col).(m16n16k8|m16n16k16)[[.shared]].(tf32|bf16) {%r0, %r1, %r2, %r3},"
    " [%d0][[, %r9]];",
    "wmma.load.a.sync.aligned.row.(m8n8k32|m8n8k128|m16n16k16)[[.global]].(s4|u4|b1) {%r0}, [%d0][[, %r9]];",
    "wmma.load.(a|b).sync.aligned.(row|col).(m8n8k4|m16n16k16)[[.global]].f64 {%d0}, [%d1][[, %r9]];",
    "wgmma.(fence|commit_group)[[.sync]][[.aligned]];",
    "wgmma.wait_group[[.sync]][[.aligned]] (0|7|8|%r0);",
)
_HALVES = "[[.b0|.b3|.h1]]"
INTEGERS = (
    "(vadd|vsub|vabsdiff|vmin|vmax).(u32|s32).(u32|s32).(u32|s32)[[.sat]] %r0[[.b1|.h0]], %r1[[.b0|.h1]], %r2;",
    "(vadd|vsub|vmax).(u32|s32).(u32|s32).(u32|s32)[[.sat]][[.add|.min|.max]] %r0, %r1[[.b0]], %r2, %r3;",
    "(vshl|vshr).(u32|s32).(u32|s32).u32[[.sat]](.clamp|.wrap)[[.add|.max]] %r0, %r1[[.h0]], %r2, %r3;",
    "(vshl|vshr).(u32|s32).(u32|s32).u32[[.sat]][[.clamp|.wrap]] %r0, %r1[[.h0]], %r2;",
    "vmad.(u32|s32).(u32|s32).(u32|s32)[[.sat]][[.shr7|.shr15|.po]] %r0, [[-]]%r1[[.b0|.h1]], %r2, [[-]]%r3;",
    "vset.(u32|s32).(u32|s32)(.eq|.ne|.lt|.le|.gt|.ge|.lo)[[.add|.min]] %r0, %r1, %r2[[, %r3]];",
    "(vadd2|vsub2|vavrg2|vabsdiff2|vmin2|vmax2).(u32|s32).(u32|s32).(u32|s32)[[.sat]][[.add]] %r0"
    "[[.h1|.h10]], %r1[[.h32]], %r2, %r3;",
    "(vadd4|vsub4|vavrg4|vabsdiff4|vmin4|vmax4).(u32|s32).(u32|s32).(u32|s32)[[.sat]][[.add]] %r0"
    "[[.b0]], %r1[[.b7654]], %r2, %r3;",
    "(vset2|vset4).(u32|s32).(u32|s32)(.eq|.lt|.ge)[[.add]] %r0, %r1, %r2, %r3;",
    "prmt.b32[[.f4e|.b4e|.rc8|.ecl|.ecr|.rc16]] %r0, %r1, (%r2|5), (%r3|0x3210);",
    "lop3[[.and|.or|.xor]].b32 %r0[[/%p0]], %r1, %r2, %r3, 0x96[[, %p1]];",
    "lop3[[.and|.or]].b32 _/%p0, %r1, %r2, %r3, 0x96, [[!]]%p1;",
    "shf.(l|r)[[.clamp|.wrap]].(b32|u32|b64) %r0, %r1, %r2, (%r3|5);",
    "bfe.(u32|s32|u64|s64|b32) %r0, %r1, (%r2|3), (%r3|4);",
    "bfe.(u64|s64) %d0, %d1, (%r2|3), (%r3|4);",
    "bfi.(b32|u32) %r0, %r1, %r2, (%r3|4), (%r4|5);",
    "bfi.b64 %d0, %d1, %d2, (%r3|4), (%r4|5);",
    "bfind[[.shiftamt]].(u32|s32|b32) %r0, %r1;",
    "bfind[[.shiftamt]].(u64|s64) (%r0|%d0), %d1;",
    "(bmsk|szext)[[.clamp|.wrap]].(b32|u32|s32) %r0, %r1, %r2;",
    "(popc|clz|brev).(b32|b64|u32) (%r0|%d0), (%r1|%d1);",
    "(dp4a|dp2a)[[.lo|.hi]].(u32|s32).(u32|s32) %r0, %r1, %r2, %r3;",
    "cvt.pack[[.sat]].(u16|s16|u8|s8|u4|s4|u2|s2).(s32|u32)[[.b32]] %r0, %r1, %r2[[, %r3]];",
    "(mul24|mad24)[[.hi|.lo|.wide]][[.sat]].(u32|s32) %r0, %r1, %r2[[, %r3]];",
    "mad[[.hi|.lo|.wide]][[.sat|.cc]].(u32|s32|s16|u64) %r0, %r1, %r2, %r3;",
    "(add|sub|addc|subc)[[.cc|.sat]].(u32|s32|u64|s64|b32) %r0, %r1, %r2;",
    "(mov).(b32|u32) %r0, {%h0, %h1};",
    "mov.b64 (%d0|{%r0, %r1}|{%h0, %h1, %h2, %h3}), (%d1|{%r2, %r3});",
    "mov.b128 (%q0|{%d0, %d1}), (%q1|{%d2, %d3});",
    "(mapa|getctarank)[[.shared::cluster]].(u32|u64|s32|b32) (%r0|%d0), (%r1|%d1)[[, %r2]];",
    "cvta[[.to]].(global|shared|local|const|param|shared::cta|shared::cluster).(u64|u32) %d0, %d1;",
    "(min|max)[[.ftz]][[.NaN]][[.abs]].(f32|f16) %r0, %r1, %r2, %r3;",
    "fma.rn[[.oob]][[.relu|.ftz]].(f16|bf16x2|f32) %r0, %r1, %r2, %r3;",
    "(add|sub)[[.rn|.rz]][[.sat]].f32.(f16|bf16) %r0, %h1, %r2;",
    "fma.(rn|rz)[[.sat]].f32.(f16|bf16) %r0, %h1, %h2, %r3;",
    "cvt[[.rni|.rzi]].bf16.bf16 %h0, %h1;",
    "(testp).(finite|nan|number|subnormal).(f32|f64|f16) %p0, %r0;",
    "copysign.(f32|f64|f16) %r0, %r1, %r2;",
    "selp.(b32|u32|f32|f16|b16|pred) %r0, %r1, %r2, %p0;",
    "slct[[.ftz]].(b32|u32|f32).(s32|f32|u32) %r0, %r1, %r2, %r3;",
)

FAMILIES = {
    "hints": HINTS, "barriers": BARRIERS, "mbarriers": MBARRIERS, "copies": COPIES, "warps": WARPS,
    "integers": INTEGERS,
}  # fmt: skip
