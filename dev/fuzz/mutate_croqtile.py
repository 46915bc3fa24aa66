"""Mutated `.co` files: each is compiled, or refused with an error meant for users."""

from __future__ import annotations

import ast
import random
import re
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from dev.fuzz.mutate_python import Outcome, attempt
from tilemma import croqtile
from tilemma.croqtile.words import TYPES, WORDS
from tilemma.kernels import Kernel

# One mutated kernel must not take longer than this, in seconds.
PATIENCE = 20.0

# Every form that the parser knows, in kernels that do little.
SEEDS = [
    """
#define T 16
#define TWICE(x) ((x) + (x))
__co__ auto f(f32 [M, N] a, global f16 [N, ?] b, int n, f32 scale) {
  f32 [M, N] out;
  s : [M, 4]; r : s [(0)/2, (1)+1]; t = {1, 2, 3}; t2 = t {(0), 4};
  int halved = n / 2;
  assert(T % 2 == 0, "even");
  parallel {p, q} by [cdiv(M, T), 4] : block {
    shared f32 [T, TWICE(8)] buf[2];
    local f32 [4] l {0.0f};
    mutable int i = 0;
    f32 sum = 0.0f;
    f = dma.copy.async.swiz<128> a.subspan(T, 16).at(p, q) => buf[0];
    wait f;
    parallel w by 2 : group, lane by 32 : thread {
      foreach {x, y} in [4, 4] {
        sum += buf[0].at(x, y) * scale - __exp(a.at(p # x, y));
        if (x == 2 && y != 1 || !(n < 3)) { out.at(x, y) = sum > 0.0f ? sum : -sum; } else break;
      }
      with k in 8 { foreach k(1:-1:2) : unroll(2) { l.at(k % 4) = 0.0f; } }
      while (i < 4) { i++; }
      __atomic_add(out.at(0, 0), 1.0f);
    }
    println("p = ", p, " of ", #p, |a.span|, |f16|);
  }
  return out;
}
""",
    """
__co__ void g(global f16 [M, K] lhs, global f16 [N, K] rhs, global f16 [M, N] output) {
  parallel {bm, bn} by [cdiv(M, 128), cdiv(N, 128)] : block {
    shared event full[2], empty[2] = ready;
    shared f16 [128, 64] a_s[2], b_s[2];
    shared f16 [128, 128] c_s;
    parallel wg by 2 : group-4 {
      inthreads.async (wg == 0) {
        foreach {k} in [cdiv(K, 64)] {
          stage = k % 2;
          wait empty[stage];
          tma.copy.async<full[stage]>.swiz<3> lhs.subspan(128, 64).at(bm, k).zfill => a_s[stage];
          f = tma.load.async.evict_first.swiz<128> rhs.chunkat(bn, k) => b_s[stage];
          trigger full.at(k) after f;
        }
      }
      inthreads.async (wg == 1) {
        frag mc[2][1] {0.0f};
        acc = mma.fill.f32 0.0f;
        foreach {k} in [cdiv(K, 64)] {
          wait full.at(k);
          ma = mma.load.swiz<128> a_s[k % 2].chunkat(_, 0);
          mma.row.row acc, ma, b_s[k % 2];
          mma.commit;
          trigger empty[k % 2];
        }
        apply {i, j} in acc.span { acc.at(i, j) = acc.at(i, j) * 2.0f; }
        mma.store.transp acc, c_s;
        dma.copy c_s => output.view(128, 128).from(bm * 128, bn * 128);
      }
    }
  }
}
""",
]
EXTRA = [
    "{", "}", "(", ")", "[", "]", "<", ">", ";", ",", ":", "::", ".", "#", "##", "?", "??", "_", "=", "=>", "<->",
    "+", "-", "*", "/", "%", "!", "~", "&", "|", "^", "&&", "||", "<<", ">>", "++", "--", "+=",
    "0", "1", "-1", "16",
    "99999999999999999999", "0x", "1.0", "1.0f", "1.", "'c'", '"s', '"s"', "\\", "$", "é", "/*", "*/", "//",
    "\n#define X X\n", "\n#define Y(a) Y2(a a)\n", "\n#if 1\n", "\n#else\n", "\n#endif\n", "\n#if (\n",
    "M", "K", "mc", "a", "f", "sum", "p", "parallel p by 2", "foreach i in [4]", "by [2, 2] : block", ": group-4",
    ": thread", "shared", "local", "global", "f16", "f16 [4]", "s4", "f6_e3m2", "void", "auto", "mutable", "event",
    "frag", ".at(0)", ".at(0, 0)", ".chunkat(_, 0)", ".subspan(4, 4)", ".step(1, 1)", ".span", ".span(0)",
    ".span_as([4, 4])", ".sqz()", ".data", ".nothing", ".view(2, 2 : 1, 1)", ".from(0, 0)", "mma.fill 0.0",
    "mma.load", "mma.row.row", "mma.row.col.sp", "mma.store", "mma.commit;", "mma.wait<0>;", "dma.copy",
    "dma.any", "dma.transp<1, 0>", "dma.pad<{0}, {1}, {0}, 0>", "tma.copy", "wait", "trigger", "after f",
    "sync.shared;", "sync.barrier : block;", "if (1)", "else", "while (0)", "break;", "continue;", "return a;",
    "yield;", "call f(a);", "swap(f, f);", "cdiv(4, 0)", "__exp(1)", "__to<f16>(1)", "select(1, 2, 3)", "|a|",
    "#p", "nullptr", "inf", "assert(0, \"no\");", "print!(M);", "__cpp__(\"x\")", "goto", "with k in 4", "__co__",
]  # fmt: skip
_PIECES = re.compile(r"\s+|\.?[A-Za-z_][\w-]*|[0-9][0-9.]*\w*|\"[^\"]*\"|<<|>>|&&|\|\||[=!<>+*/-]=|[^\w\s]")
_OPERATORS = (
    "+",
    "-",
    "*",
    "/",
    "%",
    "&",
    "|",
    "^",
    "<<",
    ">>",
    "==",
    "!=",
    "<",
    ">",
    "<=",
    ">=",
    "&&",
    "||",
    "#",
)
_NUMBERS = ("0", "1", "2", "3", "7", "8", "16", "17", "32", "64", "100000", "2147483648", "-1", "1.5f", "0.0")


def texts_of(files: Sequence[Path]) -> list[str]:
    """The kernels in `.co` files, and those written as strings in Python files."""
    found = list(SEEDS)
    for path in files:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".co":
            found.append(text)
            continue
        found += [
            n.value
            for n in ast.walk(ast.parse(text))
            if isinstance(n, ast.Constant) and isinstance(n.value, str) and "__co__" in n.value
        ]
    return [t for t in found if outcome(t, "seed.co").kind == "compiled"]


def mutate(text: str, others: Sequence[str], r: random.Random) -> str:
    """``text`` with a few things changed: mostly like for like, so that it still parses."""
    ways = (_pieces, _same_kind, _same_kind, _same_kind, _same_kind, _lines, _lines)
    for _ in range(r.choice((1, 1, 1, 2, 2, 3, 5))):
        text = r.choice(ways)(text, others, r) or "x"
    return text


def _pieces(text: str, others: Sequence[str], r: random.Random) -> str:
    """Pieces removed, doubled, exchanged, replaced, or spliced in from elsewhere."""
    pieces = _PIECES.findall(text) or ["x"]
    i, j = r.randrange(len(pieces)), r.randrange(len(pieces))
    match r.randrange(7):
        case 0:
            del pieces[i : i + r.choice((1, 1, 2, 5, 20))]
        case 1:
            pieces.insert(i, r.choice(EXTRA))
        case 2:
            pieces[i] = r.choice(EXTRA)
        case 3:
            pieces[i], pieces[j] = pieces[j], pieces[i]
        case 4:
            pieces[i] = pieces[j]
        case 5:
            pieces[i:i] = pieces[i : i + r.choice((3, 10, 40))]
        case 6:
            other = _PIECES.findall(r.choice(others))
            j = r.randrange(len(other))
            pieces[i:i] = other[j : j + r.choice((3, 10, 40))]
    return "".join(pieces)


def _same_kind(text: str, others: Sequence[str], r: random.Random) -> str:
    """A piece replaced by one of its kind, so that most results parse: names, members, numbers, operators."""
    pieces = _PIECES.findall(text)
    kinds = {
        "name": [i for i, p in enumerate(pieces) if _is_name(p)],
        "type": [i for i, p in enumerate(pieces) if p in TYPES],
        "member": [i for i, p in enumerate(pieces) if _is_member(p)],
        "number": [i for i, p in enumerate(pieces) if p[0].isdigit()],
        "operator": [i for i, p in enumerate(pieces) if p in _OPERATORS],
    }
    kind = r.choice(("name", "name", "name", "type", "member", "number", "number", "operator"))
    if not kinds[kind]:
        return text
    i = r.choice(kinds[kind])
    if kind == "number":
        pieces[i] = r.choice((*_NUMBERS, "n", "M", "p", "i"))
    elif kind == "operator":
        pieces[i] = r.choice(_OPERATORS)
    elif kind == "type":
        pieces[i] = r.choice(sorted(TYPES))
    else:
        donor = pieces if kind == "name" or r.random() < 0.5 else _PIECES.findall(r.choice(others))
        same = {"name": _is_name, "member": _is_member}[kind]
        pieces[i] = r.choice([p for p in donor if same(p)] or [pieces[i]])
    return "".join(pieces)


def _is_name(piece: str) -> bool:
    return piece.isidentifier() and piece not in WORDS


def _is_member(piece: str) -> bool:
    return len(piece) > 1 and piece[0] == "."


def _lines(text: str, others: Sequence[str], r: random.Random) -> str:
    """A statement of one line removed, doubled, moved, or taken from another kernel with names known here."""
    lines = text.split("\n")
    whole = [i for i, line in enumerate(lines) if line.rstrip().endswith(";")] or [0]
    i, j = r.choice(whole), r.choice(whole)
    match r.randrange(5):
        case 0:
            del lines[i]
        case 1:
            lines.insert(j, lines[i])
        case 2:
            lines[i], lines[j] = lines[j], lines[i]
        case _:
            known = [p for p in _PIECES.findall(text) if _is_name(p)]
            other = [line for line in r.choice(others).split("\n") if line.rstrip().endswith(";")] or [";"]
            pieces = _PIECES.findall(r.choice(other))
            lines.insert(i, "".join(r.choice(known) if _is_name(p) and known else p for p in pieces))
    return "\n".join(lines)


def outcome(text: str, name: str, arch: str | None = None) -> Outcome:
    """The outcome of a mutated file: its kernels built, and compiled for ``arch`` if one is given."""
    start = time.perf_counter()
    try:
        found = attempt(lambda: [Kernel(s) for s in croqtile.load(text, name, {}).sources.values()], text, arch)
    except Exception:
        found = Outcome("internal", traceback.format_exc(), text)
    if time.perf_counter() - start > PATIENCE:
        return Outcome("internal", f"took {time.perf_counter() - start:.0f} s", text)
    return found
