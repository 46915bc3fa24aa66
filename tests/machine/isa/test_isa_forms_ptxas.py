"""The tables of forms against ptxas: both accept and refuse the same forms."""

from __future__ import annotations

import itertools
import re
import subprocess

import pytest

from tests.toolchain import tool
from tilemma.dtypes import dtype
from tilemma.machine.isa import forms
from tilemma.machine.isa.forms import legal_mma, legal_wgmma

TYPES = ("f16", "bf16", "tf32", "f64", "f8_e4m3", "f8_e5m2", "s8", "u8", "s4", "u4", "b1")
ACCUMULATORS = (("f16", "f16"), ("f32", "f32"), ("s32", "s32"), ("f64", "f64"), ("f32", "f16"), ("f16", "f32"))
CLASS = {"f16": "r", "f32": "f", "s32": "r", "f64": "d"}
HEAD = """.version {version}
.target {arch}
.address_size 64
.visible .entry k()
{{
.reg .b32 r<200>; .reg .f32 f<200>; .reg .f64 d<200>; .reg .b64 q<9>; .reg .pred p<3>;
"""


def registers(kind, count, first=0):
    return "{" + ", ".join(f"{kind}{first + i}" for i in range(count)) + "}"


def refused(instructions, arch, folder, version="9.0"):
    """Indices of the instructions that ptxas has an error for; all of them share one kernel."""
    ptxas = tool("ptxas")
    head = HEAD.format(version=version, arch=arch)
    path = folder / "forms.ptx"
    path.write_text(head + "\n".join(instructions) + "\n}\n")
    command = [ptxas, f"-arch={arch}", "-o", str(folder / "forms.cubin"), str(path)]
    run = subprocess.run(command, capture_output=True, text=True)
    first = head.count("\n") + 1
    lines = {int(x) - first for x in re.findall(r"line (\d+); error", run.stderr)}
    assert lines or run.returncode == 0, run.stderr
    return lines


def mma_text(shape, a, b, c, d, sparse, bitop):
    """One instruction with the registers that the form would have; None where they would be none."""
    (m, n, k), ptx = shape, [dtype(t).ptx for t in (d, a, b, c)]
    quad = shape == (8, 8, 4) and a == "f16"
    elements = [max(1, 32 // dtype(t).bits) for t in (a, b)]
    counts = [m * (k // 2 if sparse else k) // 32 // elements[0], n * k // 32 // elements[1]]
    accumulators = {t: m * n // 32 // (2 if t == "f16" else 1) for t in CLASS}
    if quad:
        counts, accumulators = [2, 2], {**accumulators, "f16": 4, "f32": 8}
    if 0 in counts:
        return None
    operands = [
        registers(CLASS[d], accumulators[d]),
        registers("d" if a == "f64" else "r", counts[0]),
        registers("d" if b == "f64" else "r", counts[1]),
        registers(CLASS[c], accumulators[c]),
    ]
    kind = ".sp::ordered_metadata" if sparse else ""
    tail = ", r0, 0" if sparse else ""
    bits = f".{bitop}.popc" if bitop else ""
    name = f"mma{kind}.sync.aligned.m{m}n{n}k{k}.row.col.{'.'.join(ptx)}{bits}"
    return f"{name} {', '.join(operands)}{tail};"


def mma_candidates(sparse):
    shapes = {f.shape for f in forms.forms(forms.MMA)} | {f.shape for f in forms.forms(forms.MMA_SPARSE)}
    for shape, a, b, (d, c) in itertools.product(sorted(shapes), TYPES, TYPES, ACCUMULATORS):
        for bitop in ("xor", "and") if a == "b1" and not sparse else (None,):
            # ptxas names no line for dense tf32 m16n8k16 when other lines have errors, though it refuses it.
            lost = shape == (16, 8, 16) and a == "tf32" and not sparse
            if not lost and (text := mma_text(shape, a, b, c, d, sparse, bitop)):
                yield text, (shape, a, b, c, d), {"bitop": bitop}


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89", "sm_90a"])
def test_ptxas_agrees_on_every_mma(arch, sparse, tmp_path):
    candidates = list(mma_candidates(sparse))
    bad = refused([text for text, *_ in candidates], arch, tmp_path)
    keywords = {"sparse": True, "selector": 0, "ordered": True} if sparse else {}
    for i, (text, form, modifiers) in enumerate(candidates):
        verdict = legal_mma(*form, arch, **modifiers, **keywords)
        assert bool(verdict) == (i not in bad), (text, verdict)


@pytest.mark.parametrize(
    "arch,first", [("sm_75", (6, 4)), ("sm_80", (7, 0)), ("sm_89", (7, 8)), ("sm_90", (7, 8))]
)
def test_ptxas_agrees_on_the_first_version(arch, first, tmp_path):
    versions = [
        v for v in ((6, 4), (6, 5), (7, 0), (7, 1), (7, 8), (8, 3), (8, 4), (8, 5), (8, 6), (8, 7)) if v >= first
    ]
    table = [
        (f, sparse, bitop)
        for sparse, families in ((False, forms.MMA), (True, forms.MMA_SPARSE))
        for f in forms.forms(families)
        for bitop in (("xor", "and") if f.a == "b1" else (None,))
    ]
    texts = [mma_text(f.shape, f.a, f.b, f.c, f.d, sparse, bitop) for f, sparse, bitop in table]
    for version in versions:
        bad = refused(texts, arch, tmp_path, f"{version[0]}.{version[1]}")
        for i, (f, sparse, bitop) in enumerate(table):
            keywords = {"sparse": True, "selector": 0, "ordered": True} if sparse else {"bitop": bitop}
            verdict = legal_mma(f.shape, f.a, f.b, f.c, f.d, arch, ptx=version, **keywords)
            assert bool(verdict) == (i not in bad), (version, texts[i], verdict)


def wgmma_text(n, k, a, b, d, rs, sparse, selector, bitop, immediates):
    counts = 64 * n // 128 // (2 if d == "f16" else 1)
    bits = f".{bitop}.popc" if bitop else ""
    kind, types = ".sp" if sparse else "", f"{d}.{dtype(a).ptx}.{dtype(b).ptx}"
    name = f"wgmma.mma_async{kind}.sync.aligned.m64n{n}k{k}.{types}{bits}"
    operands = [registers(CLASS[d], counts), registers("r", 4, 150) if rs else "q0", "q1"]
    operands += [f"r160, {selector}"] if sparse else []
    operands += [
        "p0",
        *(str(immediates[x]) for x in ("scale_a", "scale_b", "trans_a", "trans_b") if x in immediates),
    ]
    return f"{name} {', '.join(operands)};"


def wgmma_candidates(rs, sparse):
    types = [t for t in TYPES if t not in ("f64", "u4")]
    for n, k, a, b, d in itertools.product((8, 16, 24, 40, 240, 256), (8, 16, 32, 64, 256), types, types, CLASS):
        if d == "f64":
            continue
        half, is_float = a in ("f16", "bf16"), dtype(a).is_float
        usual = {"scale_a": 1, "scale_b": -1} if is_float else {}
        if half:
            usual |= {"trans_b": 1} if rs else {"trans_a": 0, "trans_b": 1}
        variants = [usual]
        if n == 16 and a == b:
            scales = {"scale_a": 1, "scale_b": 1}
            variants += [{}, scales, {**scales, "trans_b": 1}, {"scale_a": 2, "scale_b": 1}]
        for immediates in variants:
            for selector in (0, 1, 2) if sparse and n == 16 else (0,):
                for bitop in ("and", "xor", None) if a == "b1" else (None,):
                    keywords = {"a_in_registers": rs, "sparse": sparse, "bitop": bitop, **immediates}
                    keywords["selector"] = selector if sparse else None
                    text = wgmma_text(n, k, a, b, d, rs, sparse, selector, bitop, immediates)
                    yield text, (n, k, a, b, d), keywords


@pytest.mark.parametrize("rs", [False, True], ids=["ss", "rs"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_ptxas_agrees_on_every_wgmma(rs, sparse, tmp_path):
    candidates = list(wgmma_candidates(rs, sparse))
    bad = refused([text for text, *_ in candidates], "sm_90a", tmp_path)
    for i, (text, form, keywords) in enumerate(candidates):
        verdict = legal_wgmma(*form, "sm_90a", **keywords)
        assert bool(verdict) == (i not in bad), (text, verdict)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_ptxas_agrees_on_the_first_version_of_wgmma(sparse, tmp_path):
    valid = [c for c in wgmma_candidates(False, sparse) if c[1][0] == 16 and legal_wgmma(*c[1], "sm_90a", **c[2])]
    for version in ((8, 0), (8, 1), (8, 2), (8, 3), (8, 4)):
        bad = refused([text for text, *_ in valid], "sm_90a", tmp_path, f"{version[0]}.{version[1]}")
        for i, (text, form, keywords) in enumerate(valid):
            verdict = legal_wgmma(*form, "sm_90a", ptx=version, **keywords)
            assert bool(verdict) == (i not in bad), (version, text, verdict)
