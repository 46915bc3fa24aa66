"""From PTX to machine code and back: ptxas, nvdisasm, and the cache on disk."""

from __future__ import annotations

from .cache import DiskCache, cache_folder
from .ptxas import (
    Assembly,
    Cubin,
    EntryUsage,
    PtxasFailed,
    PtxasMessage,
    PtxasTooOld,
    PtxRejected,
    Stored,
    assemble,
    begin,
    driver_image,
    ptx_span,
    register_a_in_flight,
    source_position,
    stated_options,
)
from .runs import Ahead
from .sass import DisassemblyFailed, disassemble, local_memory_accesses, sass_counts
from .toolchain import NoDisassembler, NoPtxas, Tool, ToolDoesNotRun, find_tool, seek

__all__ = [
    "Ahead", "Assembly", "Cubin", "DisassemblyFailed", "DiskCache", "EntryUsage", "NoDisassembler", "NoPtxas",
    "PtxRejected", "PtxasFailed", "PtxasMessage", "PtxasTooOld", "Stored", "Tool", "ToolDoesNotRun",
    "assemble", "begin", "cache_folder", "disassemble", "driver_image", "find_tool", "local_memory_accesses",
    "ptx_span", "register_a_in_flight", "sass_counts", "seek", "source_position",
    "stated_options",
]  # fmt: skip
