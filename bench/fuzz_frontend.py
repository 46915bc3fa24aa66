"""Mutated programs in both languages: each is compiled, or refused with an error meant for users.

    python bench/fuzz_frontend.py --count 10000 --seed 0 --json docs/proofs/frontend.json

Exit status 1 when an error of our internals reaches the user.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tilemma
from dev.fuzz import mutate_croqtile, mutate_python
from dev.fuzz.mutate_python import Outcome

ROOT = Path(__file__).resolve().parents[1]
TESTS, PYTHON, CO = (sorted((ROOT / f).glob(g)) for f, g in (
    ("tests/language", "*.py"), ("examples/py", "*.py"), ("examples/co", "*.co")))  # fmt: skip


def python() -> Callable[[int, str | None], Outcome]:
    seeds = mutate_python.kernels_of([*TESTS, *PYTHON])

    def run(i: int, arch: str | None) -> Outcome:
        r = random.Random(i)
        return mutate_python.outcome(mutate_python.mutate(r.choice(seeds), seeds, r), f"<mutated {i}>", arch)

    return run


def co() -> Callable[[int, str | None], Outcome]:
    seeds = mutate_croqtile.texts_of([*TESTS, *CO])

    def run(i: int, arch: str | None) -> Outcome:
        r = random.Random(i)
        return mutate_croqtile.outcome(mutate_croqtile.mutate(r.choice(seeds), seeds, r), f"mutated{i}.co", arch)

    return run


LANGUAGES = {"python": python, "croqtile": co}


def fuzz(language: str, seeds: range, compiled: int) -> tuple[dict[str, Any], list[str]]:
    """What became of the mutations of ``seeds``; the texts that broke us, one for each way of breaking."""
    run = LANGUAGES[language]()
    kinds: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    failures: dict[str, str] = {}
    for i in seeds:
        arch = ("sm_80", "sm_90a")[i // compiled % 2] if i % compiled == 0 else None
        found = run(i, arch)
        kinds[found.kind] += 1
        if found.kind == "refused":
            codes[found.detail.split(":")[0]] += 1
        if found.kind == "internal":
            last = found.detail.strip().split("\n")[-1][:100]
            failures.setdefault(last, f"{language} seed {i}, {arch}\n{found.text}\n{found.detail}")
    data = {
        "language": language,
        "programs": len(seeds),
        "first_seed": seeds.start,
        "compiled_to_ptx": sum(i % compiled == 0 for i in seeds),
        **dict(sorted(kinds.items())),
        "kinds_of_errors": len(codes),
    }
    return data, list(failures.values())


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--count", type=int, default=10_000, help="programs in each language")
    arguments.add_argument("--seed", type=int, default=int(time.time()) // 86400 * 1_000_000)
    arguments.add_argument("--compile", type=int, default=4, help="one in this many is compiled to PTX too")
    arguments.add_argument("--language", choices=tuple(LANGUAGES), action="append")
    arguments.add_argument("--json", type=Path, help="write the outcome here")
    options = arguments.parse_args()
    runs, broken = [], False
    for language in options.language or LANGUAGES:
        start = time.perf_counter()
        data, failures = fuzz(language, range(options.seed, options.seed + options.count), options.compile)
        runs.append(data | {"seconds": round(time.perf_counter() - start)})
        for text in failures:
            print(text, "\n")
        print(json.dumps(runs[-1]), flush=True)
        broken |= bool(failures)
    if options.json:
        record = {"date": f"{datetime.date.today():%Y-%m-%d}", "tilemma": tilemma.__version__, "runs": runs}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
