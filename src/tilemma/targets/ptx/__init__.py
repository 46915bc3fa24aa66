"""The PTX back end: lane IR as PTX text."""

from __future__ import annotations

from tilemma.targets.ptx.printer import print_kernel, print_module
from tilemma.targets.ptx.version import ptx_version

__all__ = ["print_kernel", "print_module", "ptx_version"]
