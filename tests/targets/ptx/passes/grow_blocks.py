"""Finds edits of `edited_blocks` in which a condition of the package has an outcome that it has in no other, and
adds them.

    python tests/targets/ptx/passes/grow_blocks.py 100 [seed] [PASS,PASS,..]

The first number: seconds of processor time.  An outcome is the truth of a condition, and whether two compared
values are equal (`dev/source_mutation/outcomes.py`).
"""

# ruff: noqa: E402
from __future__ import annotations

import random
import re
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from dev.source_mutation.outcomes import Outcome, OutcomeProbes

PROBES = OutcomeProbes(ROOT / "src" / "tilemma")
PROBES.install()

import edited_blocks
from edited_blocks import Edit

_TOKEN = re.compile(r"[A-Za-z_%`][\w.`-]*|\d[\w.]*|\+:|=>|[<>=!]=|<<|>>|\S")
_NUMBER = re.compile(r"\d+$")
# Seconds that one edit may take; what reads and writes IR is tested by other means.
PATIENCE, LEFT_OUT = 1, ("ir/parser", "ir/printer", "ir/canonical", "lang/", "croqtile/")


def _stop(*_: object) -> None:
    raise TimeoutError


def number(r: random.Random, old: int) -> str:
    near = (old + 1, max(old - 1, 0), old * 2, old // 2, 0, 1, 2, 3, 8, 16, 31, 32, 64, 127, 128, 256, 4096, 2**31)
    return str(r.choice(near))


def any_edit(r: random.Random, text: str, words: list[str], lines: list[str]) -> Edit:
    here = text.split("\n")
    n = r.choice([n for n, line in enumerate(here) if line.strip(" {}")])
    line = here[n]
    tokens = list(_TOKEN.finditer(line))
    t = r.choice(tokens)
    match r.randrange(10):
        case 0 if not line.rstrip().endswith("{"):
            return Edit(n + 1, 1, line, "")
        case 1 if not line.rstrip().endswith("{"):
            return Edit(n + 1, 1, line, f"{line}\\n{line}")
        case 2:
            return Edit(n + 1, 1, line, f"{r.choice(lines or [line])}\\n{line}")
        case 3:
            return Edit(n + 1, t.start() + 1, t[0], "")
        case 4 if r.random() < 0.5 and not line.rstrip().endswith("{"):
            around = r.choice(("if 1 == 1", "if M == 64", "for again: 2 = 0 to 2 step 1", "while 1 == 0"))
            return Edit(n + 1, 1, line, f"{around} {{\\n{line}\\n}}")
    numbers = [t for t in tokens if _NUMBER.fullmatch(t[0])]
    if numbers and r.random() < 0.5:
        t = r.choice(numbers)
        return Edit(n + 1, t.start() + 1, t[0], number(r, int(t[0])))
    similar = [w for w in words if w[0].isalpha() == t[0][0].isalpha()]
    return Edit(n + 1, t.start() + 1, t[0], r.choice(similar or words))


def tried(name: str, edit: Edit) -> tuple[str | None, set[Outcome]]:
    """The outcome of the edit, None if it is nothing to test; the outcomes of conditions."""
    PROBES.take_outcomes()
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    try:
        told = edited_blocks.outcome(name, edit)
    except Exception:  # an edit may make IR that no pass can be given
        return None, set()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if told.startswith(("ir-syntax", "invalid-ir", "the kernel has changed")) and not name.startswith("Verify"):
        return None, set()
    return told, {x for x in PROBES.take_outcomes() if not x[0].startswith(LEFT_OUT)}


def main(seconds: float, seed: int = 0, only: str = "") -> None:
    signal.signal(signal.SIGPROF, _stop)
    r = random.Random(seed)
    seeds = {n: x for n, x in edited_blocks.seeds().items() if not only or n.partition(" ")[0] in only.split(",")}
    passes: dict[str, list[str]] = {}
    words: dict[str, list[str]] = {}
    lines: dict[str, list[str]] = {}
    known: dict[str, set[Outcome]] = {}
    edits = {}
    for name, (_, text) in seeds.items():
        p = name.partition(" ")[0]
        passes.setdefault(p, []).append(name)
        words.setdefault(p, []).extend(_TOKEN.findall(text))
        lines.setdefault(p, []).extend(x for x in text.split("\n")[1:] if not x.rstrip().endswith(("{", "}")))
        _, outcomes = tried(name, Edit(1, 1, "", ""))
        known.setdefault(p, set()).update(outcomes)
    for p in passes:
        edits[p] = edited_blocks.parse(p)
        for name, found in edits[p].items():
            for edit, _ in found:
                known[p] |= tried(f"{p} {name}", edit)[1]
    everything = set().union(*known.values())
    start = time.process_time()
    count = 0
    while time.process_time() - start < seconds:
        # Passes whose kernels are few are tried as often as others.
        p = r.choice(list(passes))
        name = r.choice(passes[p])
        edit = any_edit(r, seeds[name][1], words[p], lines[p])
        if edit.old == edit.new or "`" in edit.new:
            continue
        count += 1
        told, outcomes = tried(name, edit)
        new = outcomes - everything
        if told is None or not new:
            continue
        everything |= new
        edits[p].setdefault(name.partition(" ")[2], []).append((edit, told))
        print(f"{name} {edit}\n    {told[:120]}\n    {sorted(new)[:3]}", flush=True)
        edited_blocks.write(p, edits[p])
    print(f"{count} tried", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), *map(int, sys.argv[2:3]), *sys.argv[3:4])
