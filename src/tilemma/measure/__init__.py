"""Time kernels and other functions, tune compile-time values, and tabulate times over sizes."""

from tilemma.measure.table import Table, report
from tilemma.measure.timing import Timing, bench
from tilemma.measure.tuning import Autotuned, Tuned, autotune, tune

__all__ = ["Autotuned", "Table", "Timing", "Tuned", "autotune", "bench", "report", "tune"]
