"""Legality: every form on every architecture, and the reasons for illegal forms."""

from __future__ import annotations

import pytest

from tilemma.dtypes import dtype
from tilemma.machine.isa import forms
from tilemma.machine.isa.forms import legal_mma, legal_wgmma

ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a")
BITOP = {"b1": "and"}


def mma_since(form):
    """The lowest architecture of a dense form, as the manual's target notes say it in words."""
    if form.a == "f64":
        return 80 if form.shape == (8, 8, 4) else 90
    if form.a.startswith("f8"):
        return 89
    if form.shape[0] == 8:
        return 70 if form.a == "f16" else 75
    return 75 if form.shape == (16, 8, 8) and form.a == "f16" else 80


@pytest.mark.parametrize("arch", ARCHS)
def test_dense_forms_exist_from_their_architecture_on(arch):
    for f in forms.forms(forms.MMA):
        for bitop in ("xor", "and") if f.a == "b1" else (None,):
            since = max(mma_since(f), 80) if bitop == "and" else mma_since(f)
            verdict = legal_mma(f.shape, f.a, f.b, f.c, f.d, arch, bitop=bitop)
            assert bool(verdict) == (int(arch[3:5]) >= since), (f, verdict)
            assert bool(verdict.reason) != bool(verdict)


@pytest.mark.parametrize("arch", ARCHS)
def test_sparse_forms_take_their_selectors_only(arch):
    for f in forms.forms(forms.MMA_SPARSE):
        words = {8: {"tf32": 4}, 16: {"tf32": 2, "f16": 4, "bf16": 4}, 32: {"f16": 2, "bf16": 2, "s8": 2, "u8": 2}}
        count = words.get(f.shape[2], {}).get(f.a, 2 if f.shape[2] == 64 and f.a in ("s4", "u4") else 1)
        since = 89 if f.a.startswith("f8") else 80
        for selector in range(5):
            verdict = legal_mma(f.shape, f.a, f.b, f.c, f.d, arch, sparse=True, selector=selector)
            assert bool(verdict) == (int(arch[3:5]) >= since and selector < count), (f, selector, verdict)


# What ptxas refuses (PTX ISA, mma): the phrase that the reason must hold.
REFUSED = [
    (((16, 8, 16), "bf16", "bf16", "f16", "f16"), {}, "D f32 with C f32"),
    (((16, 8, 4), "f16", "f16", "f32", "f32"), {}, "no shape m16n8k4"),
    (((16, 8, 16), "tf32", "tf32", "f32", "f32"), {}, "no shape m16n8k16"),
    (((16, 8, 16), "f16", "f16", "f16", "f32"), {}, "not D f32 with C f16"),
    (((16, 8, 32), "s8", "s4", "s32", "s32"), {}, "does not multiply"),
    (((16, 8, 16), "f16", "bf16", "f32", "f32"), {}, "does not multiply"),
    (((16, 8, 16), "f16", "f16", "f32", "f32"), {"layouts": ("row", "row")}, ".row.col only"),
    (((16, 8, 16), "f16", "f16", "f32", "f32"), {"satfinite": True}, ".satfinite"),
    (((16, 8, 16), "f16", "f16", "f32", "f32"), {"bitop": "xor"}, "b1 operands"),
    (((16, 8, 256), "b1", "b1", "s32", "s32"), {}, ".popc"),
    (((16, 8, 16), "e4m3", "e5m2", "f32", "f16"), {}, "not D f16 with C f32"),
    (((16, 8, 16), "f16", "f16", "f32", "f32"), {"ptx": (6, 5)}, "needs PTX 7.0"),
    (((16, 8, 32), "f16", "f16", "f32", "f32"), {"sparse": True, "selector": 2}, "sparsity selector [0, 1]"),
    (
        ((16, 8, 32), "f16", "f16", "f32", "f32"),
        {"sparse": True, "selector": 0, "ordered": True, "ptx": (8, 4)},
        "8.5",
    ),
]


@pytest.mark.parametrize("args,keywords,reason", REFUSED, ids=[r[2] for r in REFUSED])
def test_a_refusal_names_its_rule(args, keywords, reason):
    verdict = legal_mma(*args, "sm_90a", **keywords)
    assert not verdict and reason in verdict.reason, verdict


def immediates(a, rs=False):
    half, is_float = a in ("f16", "bf16"), a not in ("s8", "u8", "b1")
    return {
        "a_in_registers": rs,
        "trans_a": 0 if half and not rs else None,
        "trans_b": 0 if half else None,
        "scale_a": 1 if is_float else None,
        "scale_b": 1 if is_float else None,
        "bitop": BITOP.get(a),
    }


@pytest.mark.parametrize("rs", [False, True])
def test_wgmma_forms_exist_on_sm_90a_only(rs):
    for kind in ("wgmma", "wgmma.sp"):
        sparse = {"sparse": True, "selector": 0} if kind == "wgmma.sp" else {}
        for f in forms.forms(forms.FAMILIES[kind]):
            for n in range(0, 265, 4):
                widths = [8, 24, *range(16, 257, 16)] if f.d == "s32" else range(8, 257, 8)
                verdict = legal_wgmma(n, f.shape[2], f.a, f.b, f.d, "sm_90a", **immediates(f.a, rs), **sparse)
                assert bool(verdict) == (n in widths), (f, n, verdict)
            for arch in ("sm_80", "sm_90", "sm_100a"):
                verdict = legal_wgmma(64, f.shape[2], f.a, f.b, f.d, arch, **immediates(f.a, rs), **sparse)
                assert "sm_90a only" in verdict.reason


WGMMA_REFUSED = [
    ((64, 16, "bf16", "bf16", "f16"), {}, "D f32 with C f32"),
    ((64, 8, "tf32", "tf32", "f32"), {"trans_a": 1}, "imm-trans-a"),
    ((64, 32, "e4m3", "e4m3", "f32"), {"trans_b": 0}, "imm-trans-b"),
    ((64, 16, "f16", "f16", "f32"), {"a_in_registers": True, "trans_a": 0}, "no majorness"),
    ((64, 16, "f16", "f16", "f32"), {"scale_a": 2}, "-1 or 1"),
    ((64, 32, "s8", "s8", "s32"), {"scale_a": 1}, "no imm-scale-a"),
    ((64, 256, "b1", "b1", "s32"), {"bitop": "xor"}, ".and"),
    ((40, 32, "s8", "s8", "s32"), {}, "takes n in"),
    ((64, 32, "s8", "u8", "s32"), {"ptx": (8, 0)}, "needs PTX 8.4"),
    ((64, 32, "f16", "f16", "f32"), {"sparse": True, "selector": 2}, "sparsity selector"),
    ((64, 16, "f16", "f16", "f32"), {"satfinite": True}, ".satfinite"),
]


@pytest.mark.parametrize("args,keywords,reason", WGMMA_REFUSED, ids=[r[2] for r in WGMMA_REFUSED])
def test_a_wgmma_refusal_names_its_rule(args, keywords, reason):
    rs = keywords.get("a_in_registers", False)
    verdict = legal_wgmma(*args, "sm_90a", **{**immediates(dtype(args[2]).name, rs), **keywords})
    assert not verdict and reason in verdict.reason, verdict
