"""Where each fault that products of this kind have had is shown to be impossible here: case -> tests.

The cases are those of the areas HIST, IDEM, CMP, TOOL, MEM, SRCH, TOK, PAY, DEL, BR, SQL, HIB and ACT, as far as what they are
about exists. Not here yet: B70 and B82 (schedules), B68 (leases), and those of sockets and security.
"""

import pytest
from named_tests import fault_of

CASES = {
    "B01": ("unit/test_messages.py", "test_order_does_not_depend_on_the_clock"),
    "B02": ("unit/test_session_faults.py", "test_the_recent_history_of_one_batch_is_its_newest_part_in_order"),
    "B04": ("unit/test_session_faults.py", "test_the_recent_history_of_one_batch_is_its_newest_part_in_order"),
    "B05": ("unit/test_session_faults.py", "test_appends_within_one_tick_of_the_clock_are_both_accepted"),
    "B07": ("unit/test_session_compaction.py", "test_appends_during_a_run_succeed_and_keep_their_order"),
    "B08": ("unit/test_session_faults.py", "test_a_stream_a_second_client_and_a_tool_write_side_by_side"),
    "B10": ("unit/test_messages.py", "test_a_turn_that_is_tried_again_has_one_question_and_one_answer"),
    "B11": ("unit/test_session_faults.py", "test_a_result_that_could_not_be_stored_is_stored_once_by_the_retry"),
    "B13": (
        "unit/test_session_compaction.py",
        "test_a_transcript_sent_back_by_a_client_stores_no_summary_as_a_message",
    ),
    "B14": ("unit/test_messages.py", "test_a_summary_does_not_come_to_another_branch_when_its_end_is_deleted"),
    "B16": ("unit/test_session_blocks.py", "test_an_empty_prompt_stays_frozen_over_a_night"),
    "B17": ("unit/test_session_messages.py", "test_a_parent_of_another_session_is_refused"),
    "B19": ("unit/test_compaction_faults.py", "test_a_function_that_rests_after_a_success_blocks_no_message"),
    "B20": (
        "unit/test_session_compaction.py",
        "test_after_a_fruitless_run_the_next_waits_for_a_tenth_of_the_threshold",
    ),
    "B22": ("unit/test_session_compaction.py", "test_appends_during_a_run_succeed_and_keep_their_order"),
    "B23": (
        "unit/test_session_compaction.py",
        "test_the_originals_of_a_summary_stay_readable_and_it_can_be_told_from_them",
    ),
    "B25": (
        "unit/test_compaction_folds.py",
        "test_a_preliminary_output_leaves_a_call_open_until_the_final_one_has_come",
    ),
    "B26": ("unit/test_compaction_folds.py", "test_an_orphaned_call_is_folded_with_a_stub_after_a_bounded_age"),
    "B28": ("unit/test_compaction_folds.py", "test_the_message_that_crosses_the_threshold_may_be_a_call"),
    "B29": ("unit/test_compaction_folds.py", "test_a_fold_parts_no_pair_and_hides_no_call_that_waits"),
    "B31": (
        "unit/test_compaction_folds.py",
        "test_thirty_results_of_one_message_stay_with_their_calls_wherever_the_cut_falls",
    ),
    "B32": ("unit/test_compaction_folds.py", "test_what_a_model_is_given_after_a_compaction_is_never_empty"),
    "B34": ("unit/test_compaction_faults.py", "test_a_client_that_counts_frames_misses_none_over_a_compaction"),
    "B35": (
        "unit/test_compaction_faults.py",
        "test_what_a_summary_costs_is_added_once_whether_it_is_stored_or_dropped",
    ),
    "B37": ("unit/test_session_blocks.py", "test_an_unknown_block_is_answered_with_those_that_there_are"),
    "B38": ("unit/test_tools_export.py", "test_the_answer_of_a_write_is_the_live_usage_so_that_a_model_ends"),
    "B40": ("unit/test_session_blocks.py", "test_a_write_is_there_after_the_session_is_gone"),
    "B41": ("unit/test_full_text.py", "test_punctuation_is_no_operator"),
    "B43": ("unit/test_manager_search.py", "test_an_index_that_cannot_be_read_is_told_once_and_counted"),
    "B44": ("unit/test_full_text.py", "test_all_words_must_match_in_any_order"),
    "B46": ("unit/test_full_text.py", "test_results_tell_when_the_message_was_made"),
    "B47": ("unit/test_manager_sessions.py", "test_nothing_of_a_deleted_session_stays_and_nothing_else_goes"),
    "B49": ("unit/test_manager_sessions.py", "test_nothing_of_a_deleted_session_stays_and_nothing_else_goes"),
    "B50": ("unit/test_session_compaction.py", "test_one_picture_starts_no_compaction"),
    "B52": ("unit/test_manager_sessions.py", "test_usage_is_what_was_spent_whatever_becomes_of_the_messages"),
    "B53": (
        "unit/test_session_compaction.py",
        "test_the_estimate_counts_the_prompt_so_that_large_blocks_compact_in_time",
    ),
    "B55": ("unit/test_compaction_truncate.py", "test_emoji_of_every_length_are_cut_between_characters"),
    "B56": ("unit/test_session_faults.py", "test_one_bad_code_unit_changes_nothing_else"),
    "B58": ("unit/test_full_text.py", "test_what_follows_a_nul_is_found"),
    "B59": ("unit/test_session_faults.py", "test_a_wake_of_a_large_conversation_needs_memory_for_its_window_only"),
    "B61": (
        "unit/test_tools_export.py",
        "test_a_call_whose_input_is_no_object_is_exported_as_an_empty_one_and_stored_untouched",
    ),
    "B62": ("unit/test_messages.py", "test_storage_grows_with_what_is_stored_and_not_faster"),
    "B64": ("server/test_conversation_faults.py", "test_watchers_see_every_frame_once_in_order_whatever_is_stored"),
    "B65": (
        "conformance/test_hibernating.py",
        "test_a_conversation_closed_and_claimed_between_any_two_steps_is_the_same",
    ),
    "B67": ("server/test_conversation_faults.py", "test_a_socket_keeps_its_order_and_its_connection_over_every_sleep"),
    "B71": (
        "server/test_conversation_faults.py",
        "test_a_conversation_that_crashes_its_process_at_every_wake_is_given_up_and_harms_nobody",
    ),
    "B73": ("unit/test_open_conversation.py", "test_a_snapshot_holds_exactly_the_state_of_its_slot"),
    "B74": ("unit/test_session_faults.py", "test_a_compaction_during_a_recovery_confuses_nothing"),
    "B76": ("server/test_conversation_faults.py", "test_a_frozen_owner_with_a_successor_tells_nothing_stale_and_ends"),
    "B77": (
        "server/test_conversation_faults.py",
        "test_a_hundred_first_touches_of_one_name_make_one_epoch_one_actor_and_one_file",
    ),
    "B79": (
        "unit/test_awake_conversation.py",
        "test_one_operation_of_a_conversation_that_was_taken_over_comes_back_and_a_longer_call_is_unknown",
    ),
    "B80": (
        "unit/test_awake_conversation.py",
        "test_one_operation_of_a_conversation_that_was_taken_over_comes_back_and_a_longer_call_is_unknown",
    ),
    "B83": ("server/test_conversation_faults.py", "test_clients_outlive_the_gateways_process_and_append_exactly_once"),
    "B85": ("unit/test_session_faults.py", "test_readers_backups_and_the_writer_never_lock_each_other_out"),
    "B86": ("unit/test_database.py", "test_many_processes_that_open_one_new_file_at_once_all_succeed"),
    "B88": ("unit/test_manager_sessions.py", "test_deleting_one_session_after_the_other_leaves_empty_tables"),
    "B89": ("unit/test_manager_forks.py", "test_twenty_forks_of_one_message_within_a_second_are_twenty_sessions"),
    "B91": ("unit/test_manager_sessions.py", "test_a_session_of_any_name_can_be_deleted"),
    "B92": ("unit/test_manager_forks.py", "test_branches_share_messages_until_one_is_deleted"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_test_of_a_case_exists_and_always_runs(case: str) -> None:
    assert fault_of(*CASES[case]) is None
