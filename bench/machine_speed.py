"""Warp instructions a second of the PTX machine, with all checks: python bench/machine_speed.py."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "machine"))

from test_kernels import ampere, hopper

from tilemma import machine


def main() -> None:
    programs = {
        "sm_80 mma.sync 64x64x32, 130x136x256": ampere(130, 136, 256),
        "sm_90a TMA + wgmma 128x128x64, one CTA, K=512": hopper(128, 128, 512, bn=128, consumers=2, stages=3),
        "sm_90a the same, cluster of 2, multicast": hopper(
            256, 128, 512, bn=128, consumers=2, stages=3, cluster=2
        ),
    }
    for name, (ptx, launch, args) in programs.items():
        start = time.perf_counter()
        verdict = machine.check(ptx, launch, args, schedules=5, strict=True)
        seconds = time.perf_counter() - start
        rate = verdict.instructions / seconds
        print(
            f"{name}: {seconds / 5:.3f} s a run, {rate / 1e3:.0f} thousand warp instructions a second, {verdict}"
        )


if __name__ == "__main__":
    main()
