"""Products of groups beside torch over many divisions of the rows into groups: users have any.

    python bench/ops_groups.py --json ops_groups.json
    python bench/ops_groups.py --only bf16 --rounds 9

The method is that of `bench/ops_types.py`, whose first three shapes these are.  At the end the geometric mean and
the worst ratio of each shape and type.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from ops_types import E4M3, GROUPED, Row, grouped, measure, uneven
from timing import facts


def divisions(experts: int, tokens: int) -> dict[str, list[int]]:
    """Rows of each group by the name of the division."""
    rng = torch.Generator().manual_seed(experts + 7)

    def routed(weights: torch.Tensor, unit: int = 1) -> list[int]:
        """Rows, in multiples of ``unit``, each of which draws its group."""
        picks = torch.multinomial(weights, tokens // unit, replacement=True, generator=rng)
        return (torch.bincount(picks, minlength=experts) * unit).tolist()

    def shuffled(x: torch.Tensor) -> torch.Tensor:
        return x[torch.randperm(experts, generator=rng)]

    equal_weights, numbers = torch.ones(experts), torch.arange(experts)
    found = {
        f"squares {s}": torch.diff(uneven(experts, tokens, s), prepend=torch.zeros(1).int()).tolist()
        for s in (experts, 1, 2)
    }
    found["router"] = routed(equal_weights)
    found["skewed"] = routed(torch.softmax(torch.randn(experts, generator=rng), 0))
    found["Zipf"] = routed(shuffled(1 / (numbers + 1.0)))
    found["one large"] = routed(torch.where(numbers == experts // 3, experts - 1.0, 1.0))
    found["half empty"] = routed(shuffled((numbers < experts // 2).float()))
    found["of 128"] = routed(equal_weights, 128)
    ragged = [x + (i % 2 * 2 - 1) * (x > 0) for i, x in enumerate(found["of 128"])]
    ragged[ragged.index(max(ragged))] += tokens - sum(ragged)
    found["of 128 and 1"] = ragged
    found["equal"] = [tokens // experts] * experts
    found["one"] = [tokens * (i == experts // 2) for i in range(experts)]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=("bf16", "e4m3"), default=("bf16", "e4m3"))
    parser.add_argument("--shapes", type=int, nargs="+", default=(1, 2, 3), help="rows of the table, from 1")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0, help="start no row after so many, if not 0")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: dict[str, list[Row]] = defaultdict(list)
    begin = time.time()
    for number in options.shapes:
        for kind in options.only:
            shape = GROUPED[number - 1]
            for name, sizes in divisions(*shape[:2]).items():
                if options.seconds and time.time() - begin > options.seconds:
                    continue
                ends = torch.tensor(sizes).cumsum(0).int()
                row = measure(
                    grouped(*shape, E4M3 if kind == "e4m3" else torch.bfloat16, ends, f", {name}"), options.rounds
                )
                print(row, flush=True)
                rows[f"{kind} {number}"].append(row)
            torch.cuda.empty_cache()
    for name, found in rows.items():
        ratios = [r.ratio for r in found]
        print(f"{name}: {len(found)} divisions, {statistics.geometric_mean(ratios):.3f}, worst {min(ratios):.3f}")
    if options.json:
        data: dict[str, Any] = {
            name: [r.__dict__ | {"ratio": r.ratio} for r in found] for name, found in rows.items()
        }
        options.json.write_text(json.dumps({**facts(), "rows": data}, indent=1) + "\n")
    return 0 if all(r.share <= 1 for found in rows.values() for r in found) else 1


if __name__ == "__main__":
    sys.exit(main())
