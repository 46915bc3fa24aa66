"""The part of a large product of cases that every run takes; `-m slow`, by night, takes the rest."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import pytest

# Families whose cases resemble each other and take long together: every run takes a part, one of n (`daily`).
EVERY = {
    "tests/arithmetic/test_convert.py::test_arrays": 4,
    "tests/arithmetic/test_convert.py::test_constants": 12,
    "tests/arithmetic/test_convert.py::test_kernels": 8,
    "tests/arithmetic/test_floats.py::test_exact_functions": 10,
    "tests/arithmetic/test_floats.py::test_operations": 8,
    "tests/arithmetic/test_floats.py::test_operations_in_kernels": 10,
    "tests/arithmetic/test_floats.py::test_pow_has_the_special_cases_of_c": 2,
    "tests/assemble/test_failing_tools.py::test_a_failing_tool_is_our_error_and_leaves_nothing": 6,
    "tests/atoms/test_against_machine.py::test_metadata": 2,
    "tests/atoms/test_catalogue.py::test_a_query_does_not_depend_on_the_records_made_before": 8,
    "tests/atoms/test_catalogue.py::test_gather_multiply_scatter_is_a_matrix_product": 2,
    "tests/atoms/test_catalogue.py::test_the_tensor_layouts_library_agrees": 2,
    "tests/atoms/test_emit.py::test_ptxas_refuses_it_on_an_older_target": 4,
    "tests/atoms/test_emit.py::test_ptxas_takes_every_statement": 8,
    "tests/atoms/test_probed_forms.py::test_ptxas_agrees_on_some": 8,
    "tests/atoms/test_proof_kernels.py::test_a_false_record_is_refuted": 2,
    "tests/atoms/test_proof_kernels.py::test_rows_of_one_element_prove_a_record_and_refute_a_false_one": 3,
    "tests/atoms/test_proofs.py::test_a_false_record_is_refuted": 4,
    "tests/atoms/test_proofs.py::test_a_true_record_is_proven": 4,
    "tests/atoms/test_timing_kernels.py::test_the_kernels_run": 5,
    "tests/bench/test_benchmarks.py::test_the_loop_without_a_part_multiplies_what_it_says": 2,
    "tests/bench/test_mutation_sample.py::test_mutants_are_convicted": 3,
    "tests/c_export/test_c_export.py::test_launches_as_python_does": 3,
    "tests/croqtile/test_hostile.py::test_hostile_input": 8,
    "tests/croqtile/test_hostile.py::test_hostile_kernels_compiled": 6,
    "tests/croqtile/test_parse_table.py::test_examples_parse_as_lark_parses_them": 2,
    "tests/docs/test_language_page.py::test_the_compiler_and_the_machine_compute_it": 4,
    "tests/docs/test_site.py::test_snippets_of_the_gallery_run": 12,
    "tests/gallery/test_gallery.py::test_on_the_machine": 4,
    "tests/gallery/test_gallery.py::test_on_the_reference": 2,
    "tests/ir/test_ranges.py::test_bounds_are_as_narrow_as_they_were": 7,
    "tests/ir/test_text.py::test_every_lane_operation_round_trips": 6,
    "tests/ir/test_text.py::test_every_tile_operation_round_trips": 8,
    "tests/lang/test_texts.py::test_programs_without_a_file": 4,
    "tests/language/test_advice.py::test_the_tile_that_is_advised_fits": 8,
    "tests/language/test_apply_bodies.py::test_bodies_mean_the_same_everywhere": 4,
    "tests/language/test_apply_bodies.py::test_not_refused": 5,
    "tests/language/test_atomic_types.py::test_an_operation_on_a_type": 16,
    "tests/language/test_construct_advice.py::test_followed_it_compiles": 2,
    "tests/language/test_constructs.py::test_croqtile": 2,
    "tests/language/test_constructs.py::test_decided": 2,
    "tests/language/test_constructs.py::test_on_the_machine": 12,
    "tests/language/test_edited.py::test_refusals": 6,
    "tests/language/test_element_types.py::test_a_product": 4,
    "tests/language/test_exchanged_operands.py::test_the_product_is_right": 4,
    "tests/language/test_execution_advice.py::test_followed_it_computes_what_was_meant": 2,
    "tests/language/test_fuzz.py::test_kernels_agree_with_numpy": 4,
    "tests/language/test_fuzz.py::test_the_reference_agrees_with_numpy": 2,
    "tests/language/test_jumps.py::test_jumps_mean_the_same_everywhere": 2,
    "tests/language/test_jumps.py::test_no_multiply_is_lost": 4,
    "tests/language/test_lane_random.py::test_random_exchanges_and_fragments": 4,
    "tests/language/test_lane_registers.py::test_every_instruction_multiplies_its_fragments": 12,
    "tests/language/test_lane_registers.py::test_every_sparse_instruction_multiplies_its_fragments": 8,
    "tests/language/test_lane_registers.py::test_positions_are_those_of_the_record": 6,
    "tests/language/test_lanes_apart.py::test_lanes_apart": 2,
    "tests/language/test_named_atoms.py::test_products_of_quad_pairs": 3,
    "tests/language/test_negated_operands.py::test_products_are_subtracted": 3,
    "tests/language/test_old_values.py::test_decides_for_the_instance": 2,
    "tests/language/test_old_values.py::test_operands_that_the_operation_changes": 2,
    "tests/language/test_operands.py::test_integers": 2,
    "tests/language/test_packed_elements.py::test_products": 3,
    "tests/language/test_prepacked_metadata.py::test_prepacked_metadata_is_that_of_the_matrix": 3,
    "tests/language/test_random_products.py::test_products_agree_with_numpy": 6,
    "tests/language/test_rearranged.py::test_transposing": 2,
    "tests/language/test_recorded.py::test_instructions_and_digests": 19,
    "tests/language/test_recorded.py::test_library": 24,
    "tests/language/test_recorded.py::test_positions": 2,
    "tests/language/test_recorded.py::test_random_programs": 12,
    "tests/language/test_scaled_products.py::test_scales_by_blocks_of_k": 2,
    "tests/language/test_scaled_products.py::test_sums_of_8_bit_floats_are_promoted": 2,
    "tests/language/test_scaled_sums.py::test_a_read_sees_the_sum_and_leaves_it_to_the_scale": 4,
    "tests/language/test_small_floats.py::test_scales_of_blocks_by_one_lane_s_registers": 2,
    "tests/language/test_small_floats.py::test_tiles_of_a_group": 4,
    "tests/language/test_wrapping_subscripts.py::test_sums_that_wrap_or_are_negative": 4,
    "tests/language/test_wrong_operands.py::test_one_verdict_and_one_code": 2,
    "tests/machine/corpus/test_corpus.py::test_no_alarm_and_the_right_result": 4,
    "tests/machine/corpus/test_native_verdicts.py::test_the_library_changes_no_verdict": 12,
    "tests/machine/corpus/test_planted_bugs.py::test_a_planted_bug_is_named": 2,
    "tests/machine/corpus/test_planted_bugs.py::test_a_wrong_step_of_a_descriptor_is_named": 2,
    "tests/machine/corpus/test_planted_bugs.py::test_the_advice_for_a_deleted_instruction_cures": 2,
    "tests/machine/isa/test_form_tables.py::test_ptxas_agrees_on_some": 5,
    "tests/machine/isa/test_form_tables.py::test_ptxas_agrees_on_some_without_a_table": 7,
    "tests/machine/isa/test_isa_forms_ptxas.py::test_ptxas_agrees_on_every_mma": 4,
    "tests/machine/isa/test_isa_forms_ptxas.py::test_ptxas_agrees_on_every_wgmma": 2,
    "tests/machine/isa/test_isa_numerics.py::test_rounding_is_the_search_among_all_values": 8,
    "tests/machine/test_hazard_advice.py::test_the_advised_instruction_cures": 4,
    "tests/machine/test_kernels.py::test_right_and_acquitted": 2,
    "tests/machine/test_limits.py::test_what_races_need_of_finished_ctas_is_small": 4,
    "tests/machine/test_limits.py::test_widths_of_prints_are_limited": 3,
    "tests/machine/test_livelock.py::test_a_long_loop_that_ends": 3,
    "tests/machine/test_livelock.py::test_a_loop_that_waits_for_ever": 5,
    "tests/machine/test_livelock.py::test_polls_for_what_is_written_after_a_copy": 2,
    "tests/machine/test_matrix.py::test_wgmma": 2,
    "tests/machine/test_native.py::test_runs_in_the_library_are_those_of_the_numpy_code": 2,
    "tests/machine/test_operand_layout.py::test_views_that_run_backwards_are_no_layout_error": 2,
    "tests/machine/test_proxied_litmus.py::test_global_bytes_cross_the_proxies_with_a_fence": 2,
    "tests/machine/test_public_reports.py::test_is_convicted": 2,
    "tests/machine/test_records_of_kinds.py::test_a_record_computes_what_its_operands_say": 2,
    "tests/machine/test_repairs.py::test_the_advice_cures_and_removes_nothing": 4,
    "tests/machine/test_scalar.py::test_integer_binary": 2,
    "tests/machine/test_scopes.py::test_a_sequentially_consistent_fence_of_another_thread_beyond_a_barrier": 2,
    "tests/machine/test_scopes.py::test_message_passing_between_blocks_needs_scopes_that_reach": 2,
    "tests/machine/test_scopes.py::test_within_a_block_the_narrowest_scope_is_enough": 6,
    "tests/machine/test_warps_apart.py::test_lanes_of_a_warp_compete_for_a_lock": 2,
    "tests/ops/test_convolution_steps.py::test_rows_of_few_channels_are_contracted_as_runs": 4,
    "tests/ops/test_machine.py::test_columns_beside_the_widest_boxes_are_stored_in_boxes_of_their_own": 3,
    "tests/ops/test_machine.py::test_every_tile": 6,
    "tests/ops/test_machine.py::test_layouts_and_stores": 4,
    "tests/ops/test_machine.py::test_rows_that_a_tile_has_too_many_are_not_loaded": 3,
    "tests/ops/test_machine.py::test_split_swapped_packed_and_clustered": 12,
    "tests/ops/test_machine.py::test_tiles": 3,
    "tests/ops/test_machine.py::test_tiles_chosen_for_their_number": 2,
    "tests/ops/test_machine_types.py::test_every_task_of_large_and_small_groups": 2,
    "tests/ops/test_machine_types.py::test_variants": 16,
    "tests/ops/test_matmul.py::test_any_plan_that_could_is_within_the_bound": 3,
    "tests/ops/test_matmul.py::test_random_products_are_within_the_bound": 2,
    "tests/ops/test_mixed_streams.py::test_slices_that_work_in_turns": 4,
    "tests/ops/test_mixed_streams.py::test_tiles_in_turns_compile_for_their_rows": 4,
    "tests/ops/test_plan.py::test_kernels_keep_to_registers": 9,
    "tests/ops/test_plan.py::test_kernels_of_all_rows_keep_to_registers": 8,
    "tests/ops/test_plan.py::test_kernels_of_clusters_beside_each_other_keep_to_registers": 6,
    "tests/ops/test_plan.py::test_kernels_that_share_few_rows_keep_to_registers": 6,
    "tests/ops/test_plan.py::test_kernels_that_store_transposes_keep_to_registers": 8,
    "tests/ops/test_product_forms.py::test_calls_on_the_machine": 12,
    "tests/ops/test_product_forms.py::test_large_tiles_leave_room_for_copies_ahead": 3,
    "tests/ops/test_product_forms.py::test_parts_of_k": 4,
    "tests/ops/test_product_forms.py::test_parts_of_k_are_added_in_the_kernel": 3,
    "tests/ops/test_product_forms.py::test_random_calls_are_within_the_bound": 2,
    "tests/ops/test_product_forms.py::test_slices_of_k_have_warpgroups_of_their_own": 6,
    "tests/ops/test_product_forms.py::test_weights_of_16_bits": 7,
    "tests/ops/test_real_calls.py::test_batches_that_leave_as_whole_rows_are_multiplied_by_wgmma": 4,
    "tests/ops/test_real_calls.py::test_chosen_plans_keep_to_registers": 3,
    "tests/ops/test_real_calls.py::test_chosen_plans_read_the_right_elements": 5,
    "tests/ops/test_real_calls.py::test_few_rows_of_every_layout": 2,
    "tests/ops/test_real_calls.py::test_heavy_epilogues_keep_to_registers": 4,
    "tests/ops/test_real_calls.py::test_no_tile_has_columns_of_two_blocks_of_scales": 3,
    "tests/ops/test_real_calls.py::test_plans_that_tuning_may_take_read_the_right_elements": 5,
    "tests/ops/test_row_boxes.py::test_tiles_leave_as_rows": 3,
    "tests/ops/test_wide.py::test_variants_on_the_machine": 4,
    "tests/passes/test_check_element_tiles.py::test_shapes": 8,
    "tests/passes/test_decided_on_machine.py::test_constructs": 7,
    "tests/passes/test_decided_on_machine.py::test_contracts_at_every_level": 8,
    "tests/passes/test_decided_on_machine.py::test_the_listings_on_ragged_sizes": 2,
    "tests/passes/test_decided_on_machine.py::test_the_machine_misses_whatever_is_left_out": 8,
    "tests/passes/test_meaning.py::test_the_listings": 16,
    "tests/passes/test_merge_peeled_epilogue.py::test_the_machine_agrees": 3,
    "tests/passes/test_merge_peeled_epilogue.py::test_the_meaning_stays": 4,
    "tests/pipelines/test_copies_by_many.py::test_a_role_of_two_warpgroups": 2,
    "tests/pipelines/test_copies_by_many.py::test_two_warpgroups": 4,
    "tests/pipelines/test_counted_rings.py::test_a_slot_is_released_once_it_is_read": 2,
    "tests/pipelines/test_event_simulation.py::test_configured_examples_come_to_their_end": 4,
    "tests/pipelines/test_event_simulation.py::test_examples_come_to_their_end": 2,
    "tests/pipelines/test_event_simulation.py::test_faults_are_refused_where_they_are": 2,
    "tests/pipelines/test_examples_configured.py::test_both_languages_say_the_same": 2,
    "tests/pipelines/test_examples_configured.py::test_configuration": 8,
    "tests/pipelines/test_examples_configured.py::test_persistent_on_small_shapes": 2,
    "tests/pipelines/test_examples_configured.py::test_small_shapes": 2,
    "tests/pipelines/test_few_threads.py::test_beside_multiplies": 3,
    "tests/pipelines/test_forms.py::test_form": 4,
    "tests/pipelines/test_lagging_warps.py::test_an_arrival_outside_the_loop_keeps_no_warp_in_step": 2,
    "tests/pipelines/test_lagging_warps.py::test_groups_that_only_wait_stay_in_step": 2,
    "tests/pipelines/test_lagging_warps.py::test_no_warp_misses_a_generation": 4,
    "tests/pipelines/test_odd_loops.py::test_results_stay": 3,
    "tests/pipelines/test_plain_kernels.py::test_results_stay": 2,
    "tests/pipelines/test_ring_parity.py::test_slots_in_turn": 2,
    "tests/pipelines/test_ring_parity.py::test_slots_out_of_turn": 3,
    "tests/pipelines/test_signals.py::test_a_slot_is_released_when_all_have_read_it": 4,
    "tests/pipelines/test_signals.py::test_an_answer_orders_only_what_the_other_role_was_told_of": 3,
    "tests/pipelines/test_single_tiles.py::test_every_kernel_has_its_variants": 5,
    "tests/pipelines/test_slices_in_any_order.py::test_the_first_slice_starts_from_zero": 2,
    "tests/pipelines/test_specialise_warps.py::test_kernels": 4,
    "tests/pipelines/test_specialise_warps.py::test_settings": 2,
    "tests/pipelines/test_tails.py::test_reference_and_machine_agree": 4,
    "tests/pipelines/test_thread_roles.py::test_any_lanes_produce": 4,
    "tests/pipelines/test_thread_roles.py::test_lanes_hand_over": 3,
    "tests/pipelines/test_tma_copies.py::test_types_and_swizzles": 2,
    "tests/pipelines/test_varied_kernels.py::test_as_written": 16,
    "tests/pipelines/test_varied_kernels.py::test_divided_into_roles_where_that_is_legal": 14,
    "tests/pipelines/test_without_one.py::test_nothing_can_be_left_out": 4,
    "tests/registration/test_registration.py::test_a_product_with_both": 3,
    "tests/targets/ptx/lower/test_contraction.py::test_apply_knows_rows_and_columns": 2,
    "tests/targets/ptx/lower/test_contraction.py::test_contracts": 4,
    "tests/targets/ptx/lower/test_contraction.py::test_stores_convert": 4,
    "tests/targets/ptx/lower/test_edges_of_copies.py::test_tiles_before_the_array_are_zero": 7,
    "tests/targets/ptx/lower/test_elements.py::test_copies_of_any_width": 2,
    "tests/targets/ptx/lower/test_masked_edges.py::test_edges_of_stores": 3,
    "tests/targets/ptx/lower/test_matmul_listings.py::test_assembles_without_spills_or_warnings": 2,
    "tests/targets/ptx/lower/test_matmul_listings.py::test_results_on_the_machine": 8,
    "tests/targets/ptx/lower/test_matmul_listings.py::test_tensor_cores_do_the_work": 2,
    "tests/targets/ptx/lower/test_ownership.py::test_digits_and_values_give_every_element": 4,
    "tests/targets/ptx/lower/test_types_of_results.py::test_an_accumulator_is_stored_as_every_type": 4,
    "tests/targets/ptx/lower/test_types_of_results.py::test_old_values_of_atomics": 2,
    "tests/targets/ptx/lower/test_vector_loads.py::test_a_lane_takes_neighbours_of_narrow_elements": 2,
    "tests/targets/ptx/lower/test_vector_loads.py::test_an_operand_that_others_read_keeps_its_order": 3,
    "tests/targets/ptx/lower/test_vector_loads.py::test_narrow_operands_become_pairs": 4,
    "tests/targets/ptx/lower/test_vector_loads.py::test_narrow_tiles_become_pairs": 3,
    "tests/targets/ptx/lower/test_vector_loads.py::test_rows_along_k": 2,
    "tests/targets/ptx/passes/test_allocate_shared.py::test_buffers_are_aligned_and_inside_and_apart": 2,
    "tests/targets/ptx/passes/test_allocate_shared.py::test_the_log_says_where_each_buffer_lies": 2,
    "tests/targets/ptx/passes/test_alternate_operand_registers.py::test_products_are_exact": 4,
    "tests/targets/ptx/passes/test_double_buffer_fragments.py::test_the_machine_agrees": 2,
    "tests/targets/ptx/passes/test_double_buffer_fragments.py::test_the_meaning_stays": 4,
    "tests/targets/ptx/passes/test_edited_blocks.py::test_edits": 6,
    "tests/targets/ptx/passes/test_insert_sync.py::test_a_barrier_in_a_loop_up_to_the_index_orders_iterations": 2,
    "tests/targets/ptx/passes/test_insert_sync.py::test_the_listings_are_ordered_and_nothing_can_be_left_out": 8,
    "tests/targets/ptx/passes/test_interleave_copy_issue.py::test_edges_through_vectors": 8,
    "tests/targets/ptx/passes/test_join_blocks.py::test_results": 3,
    "tests/targets/ptx/passes/test_overlap_epilogue.py::test_right_and_free_of_hazards": 2,
    "tests/targets/ptx/passes/test_pipeline_loops.py::test_blocks_take_their_tiles_in_bands_of_rows": 3,
    "tests/targets/ptx/passes/test_pipeline_loops.py::test_copies_in_branches_are_issued_ahead": 3,
    "tests/targets/ptx/passes/test_pipeline_loops.py::test_random_kernels": 4,
    "tests/targets/ptx/passes/test_sync_jumps.py::test_jumps_are_ordered_and_nothing_can_be_left_out": 4,
    "tests/targets/ptx/passes/test_warp_program.py::test_parts_of_copies_make_up_the_copy": 2,
    "tests/targets/test_cpu_after_passes.py::test_same_bits_after_every_pass": 8,
    "tests/targets/test_cpu_pipelines.py::test_warp_specialised_pipeline": 4,
    "tests/test_attention.py::test_the_machine_is_near_float64": 2,
    "tests/test_attention.py::test_the_reference_is_near_float64": 3,
    "tests/test_examples.py::test_on_the_machine": 12,
    "tests/test_examples.py::test_passes_keep_the_meaning": 8,
    "tests/test_linear_time.py::test_the_harness_sees_what_is_not_linear": 2,
    "tests/test_sass.py::test_tensor_cores_without_spills": 2,
    "tests/test_surroundings.py::test_a_closed_pipe_ends_quietly_with_the_usual_status": 3,
    "tests/test_surroundings.py::test_a_full_standard_output_is_an_error": 2,
    "tests/test_surroundings.py::test_an_interrupt_has_its_own_status_and_leaves_no_file": 2,
    "tests/tools/test_check.py::test_no_false_alarm_on_the_constructs": 8,
    "tests/tools/test_check.py::test_no_false_alarm_on_the_examples": 9,
    "tests/tools/test_show.py::test_every_record_can_be_shown_in_every_format": 3,
    "tests/tools/test_sizes.py::test_examples": 4,
}


def daily(rows: Sequence[Sequence[Hashable]], n: int) -> set[int]:
    """Positions of one of ``n`` cases of a family, whose parameters are ``rows``.

    Each next case has as many values as possible that no case has before, then those that the fewest have; where
    none differs, every n-th case is taken.  Parameters with more values than cases that are taken do not count.
    """
    count = -(-len(rows) // n)
    short = [axis for axis, values in enumerate(zip(*rows, strict=True)) if len(set(values)) <= count]
    used: Counter[tuple[int, Hashable]] = Counter()
    rest = sorted(range(len(rows)), key=lambda i: (i % n, i))
    taken: set[int] = set()
    while len(taken) < count:
        times = {i: [used[axis, rows[i][axis]] for axis in short] for i in rest}
        best = min(rest, key=lambda i: (-times[i].count(0), sum(times[i])))
        rest.remove(best)
        taken.add(best)
        used.update((axis, rows[best][axis]) for axis in short)
    return taken


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
    return count if os.environ.get("HYPOTHESIS_PROFILE") == "explore" else max(6, count // 6)
