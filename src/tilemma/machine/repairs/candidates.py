"""Candidate repairs for hazards, likely ones first: each adds synchronisation or changes an operand of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tilemma.machine.hazards import HazardError
from tilemma.machine.repairs import mbarrier, ordering
from tilemma.machine.repairs.listing import Listing, Repair
from tilemma.machine.repairs.problem import Problem

_Maker = Callable[[Problem], Iterator[Repair]]

_WAITS = (ordering.stricter_waits, ordering.commits, ordering.waits)
_COUNTS = (mbarrier.loops, mbarrier.counts, mbarrier.bytes_expected, mbarrier.parities)
_ALL: tuple[_Maker, ...] = (
    ordering.barriers, *_WAITS, ordering.proxy_fences, ordering.wgmma_fences, ordering.cluster_barriers,
    ordering.named_barriers, *_COUNTS, mbarrier.inits,
    mbarrier.tokens, mbarrier.arrivals, mbarrier.guards, mbarrier.waits,
    ordering.descriptors,
)  # fmt: skip
# The generators to try first, by the hazard's code.
_FIRST: dict[str, tuple[_Maker, ...]] = {
    "race": (
        mbarrier.copy_arrivals, ordering.named_barriers, ordering.barriers, *_COUNTS, ordering.cluster_barriers,
    ),
    "race-lanes": (ordering.barriers,),
    "race-tensor-map-copy": (ordering.barriers,),
    "race-unused-value": (ordering.barriers,),
    "read-before-arrival": (mbarrier.copy_arrivals, *_WAITS, *_COUNTS, ordering.barriers, mbarrier.arrivals),
    "overwrite-in-flight": (*_WAITS, *_COUNTS, ordering.barriers),
    "overwrite-in-flight-store": (*_WAITS, ordering.barriers),
    "missing-proxy-fence": (ordering.proxy_fences,),
    "missing-proxy-fence-cp-async": (ordering.proxy_fences,),
    "missing-proxy-fence-global": (ordering.proxy_fences,),
    "missing-proxy-fence-read": (ordering.proxy_fences,),
    "missing-tensor-map-fence": (ordering.tensor_map_fences,),
    "mbarrier-init-not-visible": (ordering.proxy_fences,),
    "mbarrier-init-not-visible-cta": (ordering.proxy_fences,),
    "uninitialised-shared": (ordering.barriers, *_WAITS, *_COUNTS),
    "register-in-flight": (*_WAITS,),
    "missing-wgmma-fence": (ordering.wgmma_fences,),
    "mbarrier-before-init": (ordering.barriers, mbarrier.inits, ordering.cluster_barriers),
    "mbarrier-arrivals": (mbarrier.counts, mbarrier.guards, mbarrier.parities),
    "mbarrier-bytes": (mbarrier.bytes_expected, mbarrier.arrivals, mbarrier.guards),
    "mbarrier-reinit": (mbarrier.guards, ordering.barriers),
    "mbarrier-elsewhere": (ordering.ranks,),
    "copy-by-many": (mbarrier.guards,),
    "deadlock": (
        mbarrier.counts, mbarrier.bytes_expected, mbarrier.parities, ordering.turns, ordering.named_barriers,
        mbarrier.arrivals,
    ),
    "barrier-count": (ordering.named_barriers, ordering.barriers),
    "uninitialised-register": (mbarrier.tokens, *_WAITS),
    "exit-with-pending": (*_WAITS, ordering.cluster_barriers),
    "exit-before-cluster": (ordering.cluster_barriers,),
    "swizzle-mismatch": (ordering.descriptors,),
    "operand-layout": (ordering.descriptors,),
    "inadmissible-descriptor": (ordering.descriptors,),
}  # fmt: skip
# Hazards of a run that are considered, of different kinds where there are: later ones are mostly consequences.
_HAZARDS = 3


def candidates(listing: Listing, hazards: Sequence[HazardError], threads: int) -> Iterator[Repair]:
    """Repairs for the first hazards; then, for the first of them, those of all other kinds."""
    first = {h.code: h for h in reversed(hazards)}
    several = sorted(hazards, key=lambda h: first[h.code] is not h)[:_HAZARDS]
    problems = [p for h in several if (p := Problem.of(listing, h, threads)) is not None]
    yield from _round_robin(
        [_round_robin([make(p) for make in _FIRST.get(p.hazard.code, ())], 4) for p in problems], 4
    )
    yield from _round_robin([make(p) for p in problems[:1] for make in _ALL], 2)


def _round_robin(sources: Sequence[Iterator[Repair]], each: int) -> Iterator[Repair]:
    """So many from each source in turn, until all have ended."""
    left = list(sources)
    while left:
        for source in list(left):
            for _ in range(each):
                repair = next(source, None)
                if repair is None:
                    left.remove(source)
                    break
                yield repair
