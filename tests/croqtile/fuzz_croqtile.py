"""Mutated kernels through the `.co` front end: every failure must be an error for users, never a traceback.

python tests/croqtile/fuzz_croqtile.py [COUNT] [SEED]
"""

from __future__ import annotations

import random
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tilemma import croqtile
from tilemma.errors import TilemmaError

ROOT = Path(__file__).resolve().parents[2]
# One mutated kernel must not take longer than this, in seconds.
PATIENCE = 5.0

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
_PIECES = re.compile(r"\s+|[A-Za-z_][\w-]*|[0-9.]+\w*|\"[^\"]*\"|[^\w\s]")


def seeds() -> list[str]:
    """The kernels that are mutated."""
    return [*(p.read_text(encoding="utf-8") for p in sorted((ROOT / "examples/co").glob("*.co"))), *SEEDS]


def mutate(text: str, others: Sequence[str], r: random.Random) -> str:
    """``text`` with a few pieces removed, doubled, exchanged, replaced, or spliced in from elsewhere."""
    pieces = _PIECES.findall(text)
    for _ in range(r.choice((1, 1, 1, 2, 2, 3, 5, 8))):
        i = r.randrange(len(pieces))
        match r.randrange(12):
            case 0:
                del pieces[i : i + r.choice((1, 1, 2, 5, 20))]
            case 1:
                pieces.insert(i, r.choice(EXTRA))
            case 2:
                pieces[i] = r.choice(EXTRA)
            case 3:
                j = r.randrange(len(pieces))
                pieces[i], pieces[j] = pieces[j], pieces[i]
            case 4:
                j = r.randrange(len(pieces))
                pieces[i] = pieces[j]
            case 5:
                length = r.choice((3, 10, 40))
                pieces[i:i] = pieces[i : i + length]
            case 6:
                other = _PIECES.findall(r.choice(others))
                j = r.randrange(len(other))
                pieces[i:i] = other[j : j + r.choice((3, 10, 40))]
            case 7 | 8 | 9:
                names = [j for j, piece in enumerate(pieces) if piece[0].isalpha()]
                if names:
                    pieces[r.choice(names)] = pieces[r.choice(names)]
            case 10 | 11:
                numbers = [j for j, piece in enumerate(pieces) if piece[0].isdigit()]
                if numbers:
                    pieces[r.choice(numbers)] = r.choice(
                        ("0", "1", "2", "3", "7", "16", "1000000", "-1", "n", "M", "p")
                    )
        if not pieces:
            pieces = ["x"]
    return "".join(pieces)


def run(text: str) -> str:
    """What became of ``text``: "ok", or the code of the error.  Anything but an error of ours propagates."""
    try:
        module = croqtile.load(text, "fuzz.co", {})
        for name in module.kernels:
            module.kernels[name]
    except TilemmaError as e:
        e.render()
        e.json()
        return e.code
    return "ok"


def fuzz(count: int, seed: int = 0) -> tuple[Counter[str], list[tuple[str, str]]]:
    """Outcomes of ``count`` mutated kernels, and (text, traceback) of those that broke the front end."""
    texts = seeds()
    outcomes: Counter[str] = Counter()
    broken: list[tuple[str, str]] = []
    for i in range(count):
        r = random.Random(f"{seed}/{i}")
        text = mutate(r.choice(texts), texts, r)
        start = time.perf_counter()
        try:
            outcomes[run(text)] += 1
        except Exception:
            outcomes["BROKEN"] += 1
            broken.append((text, traceback.format_exc()))
        if time.perf_counter() - start > PATIENCE:
            outcomes["SLOW"] += 1
            broken.append((text, "too slow"))
    return outcomes, broken


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    outcomes, broken = fuzz(count, seed)
    for code, n in outcomes.most_common():
        print(f"{n:6} {code}")
    for text, problem in broken[:5]:
        print("-" * 100, text, problem, sep="\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
