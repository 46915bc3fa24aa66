"""The kernels of examples/gallery: what each of them teaches, and problems that it solves.

Tests, the benchmark and the pages of the site derive from these records.
"""

from dev.gallery.entries import ENTRIES, FOLDER, Entry, kernel
from dev.gallery.problems import Problem

__all__ = ["ENTRIES", "FOLDER", "Entry", "Problem", "kernel"]
