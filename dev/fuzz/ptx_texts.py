"""Mutated PTX for `bench/fuzz_api.py`."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np

import tilemma as tm
from dev.fuzz.api import EXAMPLES, LAUNCH, PTX, Case, half

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
_WORD = re.compile(r"[%\w.$:]+|\s+|.", re.DOTALL)


class Texts:
    """PTX with pieces replaced (mostly by others of their kind), taken away, doubled and moved."""

    def __init__(self) -> None:
        kernel = tm.load(str(EXAMPLES / "co" / "matmul_wgmma_2group.co")).only()
        self.seeds: list[tuple[str, Any, Callable[[], dict[str, Any]]]] = [(PTX, LAUNCH, _small)] * 4
        for arch in ("sm_80", "sm_90a"):
            compiled = kernel.compile(arch)
            self.seeds.append((compiled.ptx, compiled.launches[0], _operands))

    def case(self, r: random.Random) -> Case:
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
        text = "".join(pieces)

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


def _small() -> dict[str, Any]:
    return {"out": np.zeros(64, np.uint32), "n": 20}


def _operands() -> dict[str, Any]:
    return {"lhs": half(128, 128), "rhs": half(64, 128), "output": half(128, 64)}
