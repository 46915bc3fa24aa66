"""Two small kernels in PTX with their launch plans, for the runtime's own tests."""

from __future__ import annotations

from tilemma.launch import (
    ArrayParam,
    Launch,
    PointerArgument,
    ScalarParam,
    TensorMapArgument,
    ValueArgument,
)

_STRIDES = tuple(ValueArgument(f"{a}.stride{d}", "s64") for a in ("a", "out") for d in (0, 1))

# out[i, j] = x * a[i, j], any strides; row blockIdx.y, column from blockIdx.x.
SCALE = """.version 7.0
.target sm_80
.address_size 64
.extern .shared .align 16 .b8 room[];
.visible .entry scale(.param .u64 pa, .param .u64 pout, .param .u32 pm, .param .u32 pn,
    .param .u64 pa0, .param .u64 pa1, .param .u64 po0, .param .u64 po1, .param .f32 px)
{
    .reg .pred p;
    .reg .b16 h;
    .reg .b32 r<4>;
    .reg .f32 f<3>;
    .reg .b64 q<10>;
    mov.u32 r0, %ctaid.x;
    mov.u32 r1, %tid.x;
    mad.lo.u32 r0, r0, 128, r1;
    mov.u32 r1, %ctaid.y;
    ld.param.u32 r2, [pn];
    setp.ge.u32 p, r0, r2;
    @p ret;
    cvt.u64.u32 q0, r0;
    cvt.u64.u32 q1, r1;
    ld.param.u64 q2, [pa];
    ld.param.u64 q3, [pa0];
    ld.param.u64 q4, [pa1];
    mul.lo.u64 q3, q3, q1;
    mad.lo.u64 q3, q4, q0, q3;
    shl.b64 q3, q3, 1;
    add.u64 q2, q2, q3;
    ld.global.b16 h, [q2];
    cvt.f32.f16 f0, h;
    ld.param.f32 f1, [px];
    mul.f32 f2, f0, f1;
    cvt.rn.f16.f32 h, f2;
    ld.param.u64 q5, [pout];
    ld.param.u64 q6, [po0];
    ld.param.u64 q7, [po1];
    mul.lo.u64 q6, q6, q1;
    mad.lo.u64 q6, q7, q0, q6;
    shl.b64 q6, q6, 1;
    add.u64 q5, q5, q6;
    st.global.b16 [q5], h;
    ret;
}
"""


def scale_plan(shared: int = 0) -> Launch:
    return Launch(
        entry="scale",
        arch="sm_80",
        arrays=(
            ArrayParam("a", "f16", ("M", "N"), written=False),
            ArrayParam("out", "f16", ("M", "N"), written=True, read=False),
        ),
        scalars=(ScalarParam("x", "f32"),),
        arguments=(
            PointerArgument("a"),
            PointerArgument("out"),
            ValueArgument("M", "u32"),
            ValueArgument("N", "u32"),
            *_STRIDES,
            ValueArgument("x", "f32"),
        ),
        grid=(("cdiv", "N", 128), "M", 1),
        block=(128, 1, 1),
        shared=shared,
    )


# A TMA box of 8 rows and 64 columns of f16 into shared memory, and from there element by element to out.
TILE = """.version 8.0
.target sm_90
.address_size 64
.visible .entry tile(.param .align 128 .b8 map[128], .param .u64 pout, .param .u32 pm, .param .u32 pn,
    .param .u64 po0) .maxntid 64
{
    .shared .align 128 .b8 box[1024];
    .shared .align 8 .b64 bar;
    .reg .pred p, o;
    .reg .b16 h;
    .reg .b32 r<12>;
    .reg .b64 q<8>;
    mov.u32 r0, %tid.x;
    mov.u32 r1, %ctaid.x;
    mov.u32 r2, %ctaid.y;
    shl.b32 r1, r1, 6;
    shl.b32 r2, r2, 3;
    mov.u32 r3, bar;
    mov.u32 r4, box;
    setp.ne.u32 p, r0, 0;
    @p bra ready;
    mbarrier.init.shared::cta.b64 [r3], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [r3], 1024;
    mov.b64 q0, map;
    cvta.param.u64 q0, q0;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [r4], [q0, {r1, r2}], [r3];
ready:
    bar.sync 0;
again:
    mbarrier.try_wait.parity.shared::cta.b64 p, [r3], 0;
    @!p bra again;
    add.u32 r5, r1, r0;
    ld.param.u32 r6, [pn];
    setp.ge.u32 p, r5, r6;
    @p ret;
    ld.param.u32 r7, [pm];
    ld.param.u64 q1, [pout];
    ld.param.u64 q2, [po0];
    mov.u32 r8, 0;
row:
    add.u32 r9, r2, r8;
    setp.ge.u32 o, r9, r7;
    @o ret;
    shl.b32 r10, r8, 6;
    add.u32 r10, r10, r0;
    shl.b32 r10, r10, 1;
    add.u32 r10, r10, r4;
    ld.shared.b16 h, [r10];
    cvt.u64.u32 q3, r9;
    mul.lo.u64 q3, q3, q2;
    cvt.u64.u32 q4, r5;
    add.u64 q3, q3, q4;
    shl.b64 q3, q3, 1;
    add.u64 q3, q3, q1;
    st.global.b16 [q3], h;
    add.u32 r8, r8, 1;
    setp.lt.u32 p, r8, 8;
    @p bra row;
    ret;
}
"""


def tile_plan(cluster: tuple[int, int, int] | None = None) -> Launch:
    return Launch(
        entry="tile",
        arch="sm_90",
        arrays=(
            ArrayParam("a", "f16", ("M", "N"), written=False, alignment=16, contiguous=1),
            ArrayParam("out", "f16", ("M", "N"), written=True, read=False, contiguous=1),
        ),
        scalars=(),
        arguments=(
            TensorMapArgument("a", "f16", ("N", "M"), (("mul", "a.stride0", 2),), (64, 8), (1, 1)),
            PointerArgument("out"),
            ValueArgument("M", "u32"),
            ValueArgument("N", "u32"),
            ValueArgument("out.stride0", "s64"),
        ),
        grid=(("cdiv", "N", 64), ("cdiv", "M", 8), 1),
        block=(64, 1, 1),
        cluster=cluster,
    )
