"""The `.co` front end: Croqtile text to tile IR."""

from tilemma.croqtile.load import KernelSource, Module, load

__all__ = ["KernelSource", "Module", "load"]
