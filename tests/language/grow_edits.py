"""Finds the limits of numbers in the kernels of the language's tests, and adds them to the edits.

    python tests/language/grow_edits.py co

A number of a kernel's text is replaced by others.  Where two neighbours differ in the error that they lead to, both
become edits: one on each side of a limit.  Each pair of errors is kept for at most two spellings around the number.
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator

import edited
from edited import Edit

VALUES = (0, 1, 2, 3, 4, 6, 8, 9, 16, 17, 24, 32, 33, 64, 65, 128, 129, 256, 257, 512, 1024, 1025, 4096, 4097, 65536,
          2**20, 2**31 - 1, 2**31, 2**32, 2**53, 2**63, 2**64)  # fmt: skip
# Numbers of one spelling that are tried, and spellings of one limit, and seconds for one program.
SAME, PATIENCE = 2, 4.0
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_NAME = re.compile(r"[A-Za-z_]\w*")
# What errors of one limit share.
Kind = tuple[str, ...]


class TooSlow(BaseException):
    pass


def _stop(*_: object) -> None:
    raise TooSlow


def kind(told: str) -> Kind:
    """The code, and what is wrong."""
    return tuple(re.findall(r"^[\w-]+|(?<=: what = )[^;]*", told))


def tried(language: str, text: str, edit: Edit) -> str | None:
    """What becomes of the edited text; None if that takes too long."""
    new = edit.applied(text)
    assert new is not None
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    try:
        return edited.outcome(language, new)
    except TooSlow:
        return None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def limits(language: str, text: str, line: int, found: re.Match[str]) -> Iterator[tuple[Edit, str, Edit, str]]:
    """The neighbouring values at which the outcome changes."""

    def outcome(value: int) -> tuple[Edit, str | None]:
        edit = Edit(line, found.start() + 1, found[0], str(value))
        return edit, tried(language, text, edit)

    last, was = VALUES[0], outcome(VALUES[0])
    for value in VALUES[1:]:
        now = outcome(value)
        if was[1] is not None and now[1] is not None and kind(was[1]) != kind(now[1]):
            low, high, below, above = last, value, was, now
            while high - low > 1:
                middle = (low + high) // 2
                at = outcome(middle)
                if at[1] is not None and kind(at[1]) == kind(below[1] or ""):
                    low, below = middle, at
                else:
                    high, above = middle, at
            if below[1] is not None and above[1] is not None:
                yield below[0], below[1], above[0], above[1]
        last, was = value, now


def spelling(line: str, found: re.Match[str]) -> str:
    """The text around a number, names left out."""
    before = _NAME.sub(lambda m: m[0] if m.end() >= found.start() - 2 else "_", line[: found.start()])[-12:]
    return f"{before}#{line[found.end() : found.end() + 2]}"


def main(language: str) -> None:
    signal.signal(signal.SIGPROF, _stop)
    all_edits = edited.parse(language)
    known: dict[tuple[Kind, Kind], set[str]] = {}
    spellings: dict[str, int] = {}
    for name, text in edited.programs(language).items():
        if name in edited.NOT_ALONE:
            continue
        for n, line in enumerate(text.split("\n"), 1):
            for found in _NUMBER.finditer(line):
                key = spelling(line, found)
                spellings[key] = spellings.get(key, 0) + 1
                if spellings[key] > SAME:
                    continue
                for below, one, above, other in limits(language, text, n, found):
                    places = known.setdefault((kind(one), kind(other)), set())
                    if key in places or len(places) == SAME:
                        continue
                    places.add(key)
                    edits = all_edits.setdefault(name, [])
                    print(name, below, one[:60], "|", above.new, other[:60], flush=True)
                    have = {str(e) for e, _ in edits}
                    edits += [x for x in ((below, one), (above, other)) if str(x[0]) not in have]
        edited.write(language, all_edits)


if __name__ == "__main__":
    main(sys.argv[1])
