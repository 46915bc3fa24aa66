"""Mutated PTX, and PTX with odd directives, for `bench/fuzz_api.py`."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tilemma as tm
from dev.fuzz.api import EXAMPLES, LAUNCH, PTX, ROOT, Case, half
from tilemma.machine.parser import parse

# Kernels of other compilers; longer ones take too long to change and to read.
CORPUS = ROOT / "tests" / "machine" / "corpus" / "ptx"
LONGEST = 24_000
_PIECES = (
    ".reg", ".b32", ".pred", ".local", ".shared", ".param", ".const", ".global", ".align", ".entry", ".func", ".visible", ".extern",
    ".weak", ".version", ".target", ".address_size", ".maxntid", ".reqntid", ".minnctapersm", ".maxnreg", ".reqnctapercluster",
    ".pragma", ".file", ".loc", ".section", ".attribute", ".branchtargets", ".callprototype", ".alias", "{", "}", "[", "]", "(",
    ")", "<", ">", ";", ",", ":", "@", "!", "-", "+", "|", "=", "0", "1", "-1", "4294967296", "99999999999999999999", "0x", "1.5",
    "0f3F800000", "0d", "1e999", '"x"', '"', "//", "/*", "%r1", "%q1", "%p", "%tid.x", "%tid", "%nothing", "done", "n", "out", "_",
    "mov.u32", "mov", "add.s32", "add", "mad.lo.s32", "setp.lt.s32", "bra", "bra.uni", "ret", "exit", "trap", "call", "ld.global.u32",
    "ld.param.b64", "st.shared.b8", "atom.global.add.u32", "red.global.add.f32", "cvt.rn.f16.f32", "shl.b32", "bar.sync", "barrier.sync",
    "mbarrier.init.shared.b64", "cp.async.ca.shared.global", "cp.async.commit_group", "wgmma.fence.sync.aligned", "ldmatrix.sync",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "shfl.sync.bfly.b32", "vote.sync.ballot.b32", "prmt.b32", "lop3.b32",
    "bfe.u32", "div.s32", "rem.s32", "sqrt.rn.f32", "ex2.approx.f32", "elect.sync", "fence.proxy.async", "setmaxnreg.inc.sync.aligned.u32",
    "cp.async.bulk.tensor.2d", "tex.2d", "brx.idx", "vprintf", "\ud800", "\x1b", "\0", "é",
)  # fmt: skip
# Directives with places for operands (`?`), at module level and inside a body; those of an entry stand before its
# body.  A test compares them with the directives that the machine's parser knows.
MODULE = (
    ".version ?.?", ".target ?", ".target sm_80, ?", ".address_size ?", ".file ? \"?\"", ".file ? \"?\", ?, ?", ".loc ? ? ?",
    ".section ? { .b8 ?, ? }", ".section .debug_str { ?: .b8 ? }", ".pragma ?;", ".alias ?, ?;", ".visible .global .? ?;",
    ".global .align ? .b8 ?[?];", ".const .align ? .b32 ?[?] = {?, ?};", ".shared .align ? .b8 ?[?];", ".extern .shared .b8 ?[];",
    ".global .u64 ?[?] = {?, ?+?};", ".weak .global .f32 ? = ?;", ".common .global .b8 ?[?];", ".global .attribute(?) .b8 ?[?];",
    ".tex .u64 ?;", ".global .texref ?;", ".global .samplerref ?;", ".global .surfref ? = { ? };", ".extern .func (.param .b32 ?) ? (.param .b64 ?);",
    ".func ? () .noreturn { ? }", ".weak .func (.reg .b32 ?) ? (.reg .b32 ?) { mov.b32 ?, ?; ret; }", ".visible .entry ? () .? ? { ret; }",
    ".func ? .abi_preserve ? .abi_preserve_control ? { ret; }", ".language ?", ".visible .entry ? (.param .u64 .ptr .? .align ? ?) { ret; }", ".global .?v? ? = ?;",
)  # fmt: skip
ENTRY = (
    ".maxntid ?, ?, ?", ".maxntid ?", ".reqntid ?, ?, ?", ".minnctapersm ?", ".maxnctapersm ?", ".maxnreg ?", ".reqnctapercluster ?, ?, ?",
    ".explicitcluster", ".maxclusterrank ?", ".blocksareclusters", ".pragma \"?\";", ".noreturn", ".noinline", ".abi_preserve ?",
)  # fmt: skip
BODY = (
    ".reg .? ?<?>;", ".reg .? ?, ?;", ".reg .v? .? ?;", ".local .align ? .b8 ?[?];", ".shared .align ? .b8 ?[?];", ".param .b32 ?;",
    ".param .align ? .b8 ?[?];", ".loc ? ? ?", ".loc ? ? ?, function_name ?, inlined_at ? ? ?", ".pragma ?;", "?: .branchtargets ?, ?;",
    "?: .calltargets ?, ?;", "?: .callprototype (.param .b32 _) _ (.param .b? _) ;", "{ .reg .? ?; ? }", "call (?), ?, (?);", "call ?;",
    "call ?, (?), ?;", "brx.idx ?, ?;", "bra ?;", "ld.param.? ?, [?+?];", "ld.const.? ?, [?+?];", "mov.? ?, ?;", "st.local.? [?], ?;",
)  # fmt: skip
_OPERANDS = (
    "0", "1", "-1", "2", "3", "4", "7", "8", "16", "32", "64", "1024", "4096", "65536", "4294967295", "4294967296", "18446744073709551616",
    "9" * 5000, "0x", "0x7fffffff", "1.5", "0f3F800000", "0d", "u32", "b8", "b32", "b64", "b128", "f16", "f32x2", "pred", "s128", "x", "out",
    "%r1", "%q1", "%p", "%r", "%tid.x", "f", "done", "_", "", " ", "\"x\"", "\\", "../../etc/passwd", "/dev/zero", "texmode_independent",
    "sm_90a", "sm_999", "debug", "managed", "unroll", "nounroll", "used_bytes_mask 0x1", "{", "}", "(", ";", "é", "\0", "ret;",
)  # fmt: skip
_USUAL = ("1", "2", "4", "8", "32", "b32", "u32", "f32", "x", "y", "%r1", "%r2", "%q1", "n", "global")
_WORD = re.compile(r"[%\w.$:]+|\s+|.", re.DOTALL)


class Texts:
    """PTX with pieces replaced (mostly by others of their kind), taken away, doubled and moved."""

    def __init__(self) -> None:
        kernel = tm.load(str(EXAMPLES / "co" / "matmul_wgmma_2group.co")).only()
        self.seeds: list[tuple[str, Any, Callable[[], dict[str, Any]]]] = [(PTX, LAUNCH, _small)] * 4
        for arch in ("sm_80", "sm_90a"):
            compiled = kernel.compile(arch)
            self.seeds.append((compiled.ptx, compiled.launches[0], _operands))
        self.seeds += [seed for path in sorted(CORPUS.glob("*.ptx")) for seed in _entries(path)]

    def case(self, r: random.Random) -> Case:
        if r.random() < 0.3:
            return self.directives(r)
        seed, launch, arguments = r.choice(self.seeds)
        pieces = _WORD.findall(seed)
        for _ in range(r.choice((1, 1, 2, 3, 8))):
            at = r.randrange(len(pieces))
            what = r.random()
            if what < 0.5:
                pieces[at] = self.other(pieces[at], pieces, r)
            elif what < 0.6:
                pieces[at] = r.choice(_PIECES)
            elif what < 0.7:
                pieces.insert(at, f" {r.choice(_PIECES)} ")
            elif what < 0.8:
                del pieces[at : at + r.choice((1, 1, 2, 10))]
            elif what < 0.9:
                pieces[at:at] = pieces[at : at + r.choice((1, 5, 30))]
            elif what < 0.97:
                pieces[at] = r.choice(pieces)
            else:
                del pieces[at:]
            pieces = pieces or [" "]
        return self.run("".join(pieces), launch, arguments)

    def directives(self, r: random.Random) -> Case:
        """The small kernel with one to three odd directives where they belong."""
        places = {
            ".visible .entry": (MODULE, "{0}\n.visible .entry"),
            "\n{\n": (ENTRY, "\n{0}\n{{\n"),
            "    ld.param.u64": (BODY, "    {0}\n    ld.param.u64"),
        }
        text = PTX
        for mark in r.sample(list(places), r.choice((1, 1, 2, 3))):
            directives, written = places[mark]
            odd = re.sub(
                r"\?", lambda _: r.choice(_OPERANDS if r.random() < 0.3 else _USUAL), r.choice(directives)
            )
            text = text.replace(mark, written.format(odd), 1)
        return self.run(text, LAUNCH, _small)

    def run(self, text: str, launch: Any, arguments: Callable[[], dict[str, Any]]) -> Case:
        """The case of executing ``text``."""

        def run() -> None:
            from tilemma.machine.hazards import HazardError

            try:
                tm.machine.run(text, launch, arguments(), max_steps=2000)
            except HazardError as hazard:
                str(hazard), hazard.json()

        return Case(text, run)

    def other(self, piece: str, pieces: list[str], r: random.Random) -> str:
        """Another piece of the same kind: a register for a register, an opcode for an opcode."""
        kind = _kind(piece)
        known = [p for p in (*r.sample(pieces, min(len(pieces), 200)), *_PIECES) if _kind(p) == kind]
        return r.choice(known) if known else piece


def _kind(piece: str) -> str:
    first = piece[:1]
    if first == "%":
        return "register"
    if first.isdigit():
        return "number"
    if first == ".":
        return "directive"
    return ("opcode" if "." in piece else "name") if first.isalpha() else piece


def _entries(path: Path) -> Iterator[tuple[str, Any, Callable[[], dict[str, Any]]]]:
    """The entries of a file of another compiler, with arrays for pointers and numbers for the rest."""
    text = path.read_text(encoding="utf-8")
    if len(text) > LONGEST:
        return
    for entry in parse(text, path.name).entries.values():
        if all(p.count == 1 for p in entry.parameters):
            sizes = [(p.name, p.size) for p in entry.parameters]
            block = entry.directives.get("reqntid", entry.directives.get("maxntid", (32,)))[0]
            yield text, {"entry": entry.name, "grid": 1, "block": block, "shared": 16384}, partial(_values, sizes)


def _values(sizes: list[tuple[str, int]]) -> dict[str, Any]:
    return {name: np.zeros(1 << 14, np.float32) if size == 8 else 64 for name, size in sizes}


def _small() -> dict[str, Any]:
    return {"out": np.zeros(64, np.uint32), "n": 20}


def _operands() -> dict[str, Any]:
    return {"lhs": half(128, 128), "rhs": half(64, 128), "output": half(128, 64)}
