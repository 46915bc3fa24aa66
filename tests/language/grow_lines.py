"""Finds edits of the language's kernels that run statements of the package which no kernel or edit so far runs, and
adds them.

    python tests/language/grow_lines.py co 2000 [seed]

An edit replaces, inserts or removes tokens of one line, by those of other kernels of the language.
"""

# ruff: noqa: E402
from __future__ import annotations

import random
import re
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from dev.source_mutation.probes import Probes

PROBES = Probes(ROOT / "src" / "tilemma")
PROBES.install()

import edited
import refused
from edited import Edit
from grow_edits import TooSlow, _stop, tried

_TOKEN = re.compile(
    r"[A-Za-z_][\w-]*(?:\.\w+)*|\.\w+|\d[\w.]*|\"[^\"]*\"|'[^']*'|[<>=!+*/%&|^-]=|<<|>>|&&|\|\||\S"
)
_MORE = {
    "co": "-1 0 1.5f 4294967296 \"x\" ! ~ # { } ; , : :: [ ] ( ) ... = += <<= ? return break continue wait trigger "
          "sync.shared mutable const void bool f8_e4m3 s8 u64 .span .data .at(0) .copies true false if else while",
    "py": "-1 0 1.5 2**40 'x' None True () [] {} not ~ lambda . : += None[0] float('nan') int(x) *c **c c.foo "
          "var(0) mma.fill(0.0) tm.dtypes pass return break continue is in 1j",
}  # fmt: skip


def covered(language: str) -> set[tuple[str, int]]:
    """What the kernels, their edits and the refused programs run."""
    texts = edited.programs(language)
    for name, edits in edited.parse(language).items():
        for edit, _ in edits:
            edited.outcome(language, edit.applied(texts[name]) or "")
    for text in texts.values():
        edited.outcome(language, text)
    for body in refused.bodies(language):
        edited.outcome(language, refused.program(language, body))
    return {(file, n) for file, lines in PROBES.take().items() for n in lines}


def kind_of(token: str) -> str:
    if token[0] in "\"'":
        return "text"
    return "number" if token[0].isdigit() else "word" if re.match(r"\.?\w", token) else "sign"


def any_edit(r: random.Random, text: str, pool: dict[str, list[str]]) -> Edit:
    lines = text.split("\n")
    n = r.choice([n for n, line in enumerate(lines) if line.strip()])
    found = list(_TOKEN.finditer(lines[n]))
    at = r.randrange(len(found))
    last = min(at + r.choice((1, 1, 1, 1, 2, 3, 6)), len(found)) - 1
    start, old = found[at].start(), lines[n][found[at].start() : found[last].end()]
    others = pool[kind_of(found[at][0])] if r.random() < 0.7 else pool["any"]
    way = r.randrange(8)
    if way == 0:
        return Edit(n + 1, start + 1, old, "")
    if way == 1:
        return Edit(n + 1, start + 1, "", f"{r.choice(others)} ")
    if way == 2:
        return Edit(n + 1, start + 1, "", f"{old} ")
    if way == 3:
        return Edit(n + 1, start + 1, old, " ".join(r.choice(pool["any"]) for _ in range(r.choice((2, 3)))))
    if way == 4:
        line = r.choice(pool["line"])
        return Edit(n + 1, found[0].start() + 1, "", f"{line} " if line.endswith((";", "{", "}")) else f"{line}; ")
    return Edit(n + 1, start + 1, found[at][0], r.choice(others))


def main(language: str, count: int, seed: int = 0) -> None:
    signal.signal(signal.SIGPROF, _stop)
    texts = {n: t for n, t in edited.programs(language).items() if n not in edited.NOT_ALONE}
    pool: dict[str, list[str]] = {"any": _MORE[language].split(), "line": []}
    for text in texts.values():
        pool["line"] += [line.strip() for line in text.split("\n") if line.strip()]
        for token in _TOKEN.findall(text):
            pool.setdefault(kind_of(token), []).append(token)
            pool["any"].append(token)
    known = covered(language)
    all_edits = edited.parse(language)
    r = random.Random(seed)
    for _ in range(count):
        name = r.choice(list(texts))
        edit = any_edit(r, texts[name], pool)
        if edit.old == edit.new or "`" in edit.old + edit.new:
            continue
        try:
            told = tried(language, texts[name], edit)
        except (TooSlow, AssertionError):
            told = None
        new = {(file, n) for file, lines in PROBES.take().items() for n in lines} - known
        if told is None or not new:
            continue
        known |= new
        print(f"{name} {edit}\n    {told[:150]}\n    {sorted(new)}", flush=True)
        edits = all_edits.setdefault(name, [])
        if str(edit) not in {str(e) for e, _ in edits}:
            edits.append((edit, told))
            edited.write(language, all_edits)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *map(int, sys.argv[3:]))
