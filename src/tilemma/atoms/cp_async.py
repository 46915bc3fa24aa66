"""cp.async: one lane copies 4, 8 or 16 bytes from global to shared memory, past the registers.

`.ca` caches at all levels, `.cg` (16 bytes only) in L2.  Both addresses are aligned to the size.  With a
source size the rest of the destination is zero.  PTX ISA, 9.7.9.25.3.1.
"""

from __future__ import annotations

from tilemma.atoms.atom import CopyAtom


def _record(size: int, cache: str) -> CopyAtom:
    level = {"ca": "CACHEALWAYS", "cg": "CACHEGLOBAL"}[cache]
    return CopyAtom(
        name=f"SM80_CP_ASYNC_{level}_{size}B",
        kind="cp.async",
        threads=1,
        arch="sm_80",
        ptx_version=(7, 0),
        section="PTX ISA, 9.7.9.25.3.1, cp.async",
        ptx=f"cp.async.{cache}.shared.global [{{address}}], [{{source}}], {size}{{source_size}};",
        row_bytes=size,
        asynchronous=True,
    )


ATOMS = tuple(_record(size, cache) for size, cache in ((4, "ca"), (8, "ca"), (16, "ca"), (16, "cg")))
