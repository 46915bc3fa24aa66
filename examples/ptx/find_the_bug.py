"""The PTX machine on PTX of another source: a reduction that is right on most GPUs, most of the time."""

from pathlib import Path

import numpy as np

from tilemma import machine

HERE = Path(__file__).parent


def main() -> None:
    ptx = (HERE / "block_sum.ptx").read_text()
    values = np.arange(1024, dtype=np.float32)
    sums = np.zeros(4, np.float32)
    launch = {"grid": 4, "block": 256, "read_only": ["values"]}

    verdict = machine.check(ptx, launch, {"values": values, "sums": sums}, schedules=5)
    print(verdict.render())

    # With the barrier in every step it is right under any schedule.
    fixed = ptx.replace("  @%p1 bra NEXT;\n", "")
    verdict = machine.check(fixed, launch, {"values": values, "sums": sums}, schedules=20)
    print(verdict)
    print("sums", sums, "expected", values.reshape(4, 256).sum(axis=1))


if __name__ == "__main__":
    main()
