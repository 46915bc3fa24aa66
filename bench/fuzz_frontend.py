"""Mutated Python kernels: each is compiled, or refused with an error meant for users.

    python bench/fuzz_frontend.py --count 10000 --seed 0

Exit status 1 when an error of our internals reaches the user.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path

from tilemma.tools.fuzz_mutate import kernels_of, mutate, outcome

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--count", type=int, default=10_000)
    arguments.add_argument("--seed", type=int, default=int(time.time()) // 86400 * 1_000_000)
    arguments.add_argument("--compile", type=int, default=4, help="one in this many is compiled to PTX too")
    options = arguments.parse_args()
    seeds = kernels_of(
        [*sorted((ROOT / "tests/language").glob("*.py")), *sorted((ROOT / "examples/py").glob("*.py"))]
    )
    counts: Counter[str] = Counter()
    failures: dict[str, str] = {}
    for i in range(options.seed, options.seed + options.count):
        r = random.Random(i)
        arch = r.choice(("sm_80", "sm_90a")) if i % options.compile == 0 else None
        found = outcome(mutate(r.choice(seeds), seeds, r), f"<mutated {i}>", arch)
        counts[found.kind] += 1
        if found.kind == "internal":
            failures.setdefault(
                found.detail.strip().split("\n")[-1][:100], f"seed {i}\n{found.text}\n{found.detail}"
            )
    for text in failures.values():
        print(text, "\n")
    print(f"{options.count} mutated kernels from seed {options.seed}: {dict(counts)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
