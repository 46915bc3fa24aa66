"""The part of a large product of cases that every run takes; `-m slow`, by night, takes the rest."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

# Families whose cases resemble each other and take long together: every run takes each n-th case (conftest.py).
EVERY = {
    "tests/arithmetic/test_convert.py::test_constants": 2,
    "tests/arithmetic/test_floats.py::test_exact_functions": 2,
    "tests/arithmetic/test_floats.py::test_operations_in_kernels": 2,
    "tests/atoms/test_emit.py::test_ptxas_refuses_it_on_an_older_target": 4,
    "tests/atoms/test_emit.py::test_ptxas_takes_every_statement": 4,
    "tests/croqtile/test_hostile.py::test_hostile_input": 2,
    "tests/croqtile/test_hostile.py::test_hostile_kernels_compiled": 3,
    "tests/docs/test_site.py::test_snippets_of_the_gallery_run": 2,
    "tests/gallery/test_gallery.py::test_on_the_machine": 2,
    "tests/ir/test_text.py::test_every_tile_operation_round_trips": 2,
    "tests/lang/test_texts.py::test_programs_without_a_file": 2,
    "tests/language/test_advice.py::test_the_tile_that_is_advised_fits": 2,
    "tests/language/test_apply_bodies.py::test_bodies_mean_the_same_everywhere": 2,
    "tests/language/test_atomic_types.py::test_an_operation_on_a_type": 2,
    "tests/language/test_constructs.py::test_on_the_machine": 2,
    "tests/language/test_jumps.py::test_no_multiply_is_lost": 2,
    "tests/language/test_lane_random.py::test_random_exchanges_and_fragments": 2,
    "tests/language/test_lane_registers.py::test_every_instruction_multiplies_its_fragments": 2,
    "tests/language/test_recorded.py::test_library": 3,
    "tests/language/test_recorded.py::test_random_programs": 3,
    "tests/language/test_wrapping_subscripts.py::test_sums_that_wrap_or_are_negative": 2,
    "tests/machine/isa/test_isa_numerics.py::test_rounding_is_the_search_among_all_values": 4,
    "tests/ops/test_machine.py::test_split_swapped_packed_and_clustered": 2,
    "tests/ops/test_machine_types.py::test_variants": 2,
    "tests/ops/test_product_forms.py::test_calls_on_the_machine": 3,
    "tests/passes/test_check_element_tiles.py::test_shapes": 2,
    "tests/passes/test_decided_on_machine.py::test_contracts_at_every_level": 2,
    "tests/passes/test_decided_on_machine.py::test_the_machine_misses_whatever_is_left_out": 2,
    "tests/passes/test_meaning.py::test_the_listings": 2,
    "tests/pipelines/test_examples_configured.py::test_configuration": 4,
    "tests/pipelines/test_lagging_warps.py::test_no_warp_misses_a_generation": 2,
    "tests/pipelines/test_signals.py::test_a_slot_is_released_when_all_have_read_it": 2,
    "tests/pipelines/test_specialise_warps.py::test_kernels": 2,
    "tests/targets/ptx/lower/test_contraction.py::test_stores_convert": 2,
    "tests/targets/ptx/lower/test_matmul_listings.py::test_results_on_the_machine": 2,
    "tests/targets/ptx/lower/test_types_of_results.py::test_an_accumulator_is_stored_as_every_type": 2,
    "tests/targets/ptx/passes/test_insert_sync.py::test_the_listings_are_ordered_and_nothing_can_be_left_out": 2,
    "tests/targets/ptx/passes/test_interleave_copy_issue.py::test_edges_through_vectors": 2,
    "tests/targets/ptx/passes/test_sync_jumps.py::test_jumps_are_ordered_and_nothing_can_be_left_out": 2,
    "tests/test_examples.py::test_on_the_machine": 3,
    "tests/tools/test_check.py::test_no_false_alarm_on_the_constructs": 2,
}


def by_night(config: pytest.Config) -> bool:
    """Whether the run has the slow cases as well."""
    return str(config.getoption("-m")) != "not slow"


def pairwise(*axes: Iterable[Any]) -> list[Any]:
    """The product of ``axes`` for `parametrize`, in which any two values of different axes meet in a case of every
    run; the other cases are slow.  A value that is a tuple fills several names."""
    choices = [list(a) for a in axes]
    every = list(itertools.product(*(range(len(a)) for a in choices)))
    taken = set(_covering(every))
    found = []
    for row in every:
        values = [choices[axis][i] for axis, i in enumerate(row)]
        flat = [x for v in values for x in (v if isinstance(v, tuple) else (v,))]
        found.append(pytest.param(*flat, marks=[] if row in taken else pytest.mark.slow))
    return found


def _covering(every: Sequence[tuple[int, ...]]) -> Iterable[tuple[int, ...]]:
    """Rows of ``every`` that hold each pair of its columns' values, chosen greedily."""

    def pairs(row: tuple[int, ...]) -> set[Any]:
        return set(itertools.combinations(enumerate(row), 2)) or {row}

    missing = set().union(*map(pairs, every))
    while missing:
        best = max(every, key=lambda row: len(pairs(row) & missing))
        missing -= pairs(best)
        yield best


def examples(count: int) -> int:
    """Examples that a property test draws: ``count`` with HYPOTHESIS_PROFILE=explore, a sixth in every run."""
    return count if os.environ.get("HYPOTHESIS_PROFILE") == "explore" else max(10, count // 6)
