"""Catalogue of mutants, each with the scenario in which it is looked for."""

from typing import NamedTuple

from tests.exploration import test_rules as rules
from tests.exploration import test_rules_of_aborts as abort_rules
from tests.exploration import test_rules_of_claims as claim_rules
from tests.exploration import test_rules_of_commands as commands
from tests.exploration import test_rules_of_later as later_rules
from tests.exploration import test_rules_of_results as results_rules
from tests.exploration import test_rules_of_timers as timer_rules
from tests.exploration import test_rules_of_versions as versions
from tests.mutants import change_mutants as changes
from tests.mutants import control_mutants as control
from tests.mutants import cure_mutants as cure
from tests.mutants import deadline_mutants as deadlines
from tests.mutants import later_mutants as later
from tests.mutants import limit_mutants as limits
from tests.mutants import parking_mutants as parking
from tests.mutants import released_orders as releases
from tests.mutants import runtime_mutants as runtime
from tests.mutants import service_mutants as service
from tests.mutants import versioned_baskets as baskets
from tests.mutants.runtime_mutants import Plant


class Mutant(NamedTuple):
    """A bug that can be planted."""

    plant: Plant
    scenario: str


MUTANTS = [
    Mutant(plant, scenario)
    for scenario, plants in {
        "orders, clumsy": (
            rules.readers_do_not_publish,
            rules.an_ambiguous_write_counts_as_successful,
            rules.an_ambiguous_write_is_overwritten,
            rules.self_consumed_events_are_no_parts,
            rules.compensations_close_nothing,
            rules.refusals_leave_no_marker,
            runtime.a_write_marks_its_own_events_as_published,
            runtime.republished_events_have_another_time,
            runtime.progresses_are_written_without_compare_and_swap,
            runtime.keys_from_attempts,
            runtime.a_result_is_undone_twice,
            runtime.updates_leave_no_marker,
            runtime.documents_are_written_without_compare_and_swap,
            service.money_is_released_before_the_outcome,
            service.money_is_never_released,
            service.money_is_taken_before_the_outcome,
            service.a_reservation_has_a_fresh_key_for_each_attempt,
            service.a_capture_has_no_key,
            service.a_blocked_card_is_no_answer,
            service.goods_are_handed_out_before_the_success,
            service.the_stock_is_read_and_written_in_two_steps,
            service.an_order_is_confirmed_when_it_is_paid,
            service.an_order_is_not_cancelled_when_its_shipment_is_refused,
        ),
        "orders, restless": (
            runtime.offsets_are_committed_past_gaps,
            runtime.an_abandoned_message_counts_as_finished,
            runtime.markers_from_the_time,
        ),
        "parties, clumsy": (
            runtime.a_pending_message_is_dropped,
            rules.keys_from_transition_numbers,
            rules.a_failed_send_is_forgotten,
            rules.a_pending_message_is_decided_again_when_it_is_redelivered,
            rules.open_intents_are_not_settled,
            rules.originals_are_not_dropped,
            rules.a_rerun_writes_the_whole_state_back,
            runtime.step_results_are_kept_in_memory_only,
            runtime.a_second_failure_event_counts_as_other_content,
        ),
        "parties, restless": (
            rules.a_rerun_sees_the_current_state,
            rules.an_open_intent_blocks_no_other_message,
            rules.a_second_outcome,
            runtime.commits_before_publishing,
            runtime.a_lost_partition_is_kept,
        ),
        "one party, clumsy": (
            rules.nothing_is_settled,
            rules.only_the_newest_result_is_undone,
            runtime.keys_without_their_cause,
            runtime.results_are_undone_oldest_first,
        ),
        "one party, restless": (
            rules.handlers_run_for_every_message,
            rules.self_consumed_parts_are_not_withdrawn,
            runtime.messages_of_one_saga_run_concurrently,
            runtime.events_go_out_in_any_order,
            runtime.a_step_begins_without_an_intent,
            runtime.queued_messages_are_put_in_front,
        ),
        "mortal parties": (
            rules.a_later_message_overtakes_pending_ones,
            rules.compensations_do_not_wait_for_originals,
            runtime.dead_letters_are_not_published,
            runtime.a_dead_letter_blocks_no_other_message,
            runtime.a_dead_letter_is_dropped,
        ),
        "cured parties": (
            commands.replays_are_not_counted,
            runtime.a_second_replay_counts_as_a_duplicate,
            runtime.a_replay_takes_the_message_out_of_the_queue,
            cure.a_replay_runs_twice,
            cure.a_command_overwrites_concurrent_writes,
        ),
        "released orders": (
            versions.a_migration_is_applied_twice,
            versions.a_newer_state_is_read_by_an_older_release,
            versions.a_rerun_gets_the_unmigrated_state,
            versions.a_migration_is_not_recorded_in_its_transition,
            releases.a_flag_counts_as_any_other_call,
        ),
        "changed parcels": (
            changes.a_removal_has_the_id_of_the_removed_version,
            changes.changes_are_forgotten_before_they_are_published,
            changes.changes_are_identified_by_their_offset,
            changes.changes_are_published_in_reverse_order,
            changes.changes_recorded_during_publishing_are_forgotten,
        ),
        "parcels behind a connector": (
            changes.changes_are_identified_by_their_key_alone,
            changes.changes_are_identified_by_their_record_time,
        ),
        "switched orders": (cure.a_flag_changes_under_a_rerun,),
        "cured orders": (
            cure.a_compensation_may_be_discarded,
            cure.a_resolution_is_ignored,
        ),
        "an order that is cured late": (cure.open_sagas_expire,),
        "orders that expire": (deadlines.deadlines_are_in_memory_only,),
        "goods that are counted": (rules.an_ended_intent_leaves_no_never_marker,),
        "parties at closed doors": (
            timer_rules.other_timers_are_dropped_before_ready_runs,
            parking.timers_are_finished_when_they_are_buffered,
            parking.timers_are_not_published,
            parking.timers_of_a_dead_worker_are_not_published_again,
            parking.a_parked_run_moves_to_the_end,
            parking.a_parked_run_blocks_no_later_message,
            parking.attempts_are_forgotten,
            parking.parked_runs_are_in_memory_only,
        ),
        "an order at a bank that is away for hours": (parking.copies_of_a_timer_are_forwarded_too,),
        "orders at a bank that is away": (
            limits.a_breaker_burns_attempts,
            limits.an_open_breaker_lets_all_through,
            limits.a_refused_call_keeps_its_turn,
        ),
        "orders with two banks": (limits.a_fallback_runs_beside_a_call_that_may_have_happened,),
        "paused orders": (
            control.a_pause_burns_attempts,
            control.a_pause_is_in_memory_only,
            control.a_pause_ends_when_its_timer_fires,
            control.a_route_drops_open_intents,
        ),
        "orders in instalments": (
            later_rules.turns_share_their_keys,
            later_rules.turns_wait_in_memory_alone,
            later_rules.begun_turns_are_not_resumed,
            later_rules.side_effects_of_turns_are_forgotten,
            abort_rules.finished_turns_are_not_aborted,
            later.a_turn_repeats_the_steps_of_the_last_one,
            later.a_turn_waits_for_events_of_the_last_turn,
            later.closed_suspended_runs_continue,
            later.a_suspended_run_keeps_its_lane,
        ),
        "orders in many parts": (
            results_rules.results_in_segments_are_forgotten,
            results_rules.the_segment_below_is_forgotten,
            results_rules.segments_are_written_after_the_progress_that_lists_them,
            claim_rules.claims_are_written_after_the_progress_that_names_them,
            claim_rules.claims_are_not_read,
        ),
        "versioned baskets": (
            baskets.what_waits_is_read_by_resolution,
            baskets.what_was_upcast_is_upcast_again,
        ),
        "a long party": (
            runtime.nothing_is_marked_as_published,
            runtime.the_inbox_is_trimmed_by_count,
        ),
        "a full pad": (rules.updates_do_not_look_at_the_progress,),
    }.items()
    for plant in plants
]

FOUND_BY: dict[Plant, int] = {
    limits.a_refused_call_keeps_its_turn: 222,
    rules.a_rerun_sees_the_current_state: 197,
    rules.updates_do_not_look_at_the_progress: 137,
    rules.a_rerun_writes_the_whole_state_back: 129,
    rules.a_later_message_overtakes_pending_ones: 116,
    parking.a_parked_run_blocks_no_later_message: 45,
    service.a_capture_has_no_key: 44,
    cure.a_command_overwrites_concurrent_writes: 27,
    runtime.a_second_failure_event_counts_as_other_content: 23,
    rules.compensations_do_not_wait_for_originals: 23,
    rules.an_open_intent_blocks_no_other_message: 21,
    runtime.a_dead_letter_is_dropped: 18,
    rules.originals_are_not_dropped: 17,
    runtime.a_dead_letter_blocks_no_other_message: 15,
    runtime.a_lost_partition_is_kept: 13,
    parking.copies_of_a_timer_are_forwarded_too: 11,
    runtime.dead_letters_are_not_published: 10,
    cure.a_replay_runs_twice: 9,
    rules.open_intents_are_not_settled: 6,
    runtime.messages_of_one_saga_run_concurrently: 6,
    rules.a_pending_message_is_decided_again_when_it_is_redelivered: 5,
    releases.a_flag_counts_as_any_other_call: 5,
    parking.timers_are_finished_when_they_are_buffered: 5,
    parking.timers_are_not_published: 5,
    timer_rules.other_timers_are_dropped_before_ready_runs: 5,
    rules.an_ended_intent_leaves_no_never_marker: 5,
    limits.a_breaker_burns_attempts: 3,
    limits.an_open_breaker_lets_all_through: 3,
    rules.self_consumed_parts_are_not_withdrawn: 3,
    results_rules.segments_are_written_after_the_progress_that_lists_them: 2,
    claim_rules.claims_are_written_after_the_progress_that_names_them: 2,
}
"""Seed that finds what hides well, or that finds it in a short run: tests play it first, then all others."""

SURVIVORS: list[Plant] = [
    runtime.a_revoked_partition_is_kept,
    runtime.decisions_without_a_write_trust_the_cache,
    runtime.the_cache_outlives_a_rebalance,
    runtime.both_trust_an_old_cache,
]
"""Mutants that are expected not to be found: each says why. They are not counted."""
