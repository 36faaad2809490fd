"""Where each row of DESIGN.md section 5 (what is better than in the reference) has its right value: row -> tests."""

import json
import re
from pathlib import Path

import pytest
from named_tests import TESTS, fault_of

DESIGN = Path(__file__).parents[3] / "shared" / "DESIGN.md"

ROWS: dict[str, tuple[tuple[str, str], ...]] = {
    "D1": (
        ("unit/test_messages.py", "test_children_of_a_deleted_message_take_its_parent"),
        ("unit/test_messages.py", "test_children_of_a_deleted_root_become_roots"),
    ),
    "D2": (
        ("unit/test_messages.py", "test_an_unknown_parent_is_refused_and_nothing_is_stored"),
        ("unit/test_session_messages.py", "test_a_parent_of_another_session_is_refused"),
    ),
    "D3": (
        ("unit/test_messages.py", "test_an_invalid_message_is_refused_before_anything_is_written"),
        ("unit/test_session_messages.py", "test_a_message_that_is_none_is_refused_before_anything_is_stored"),
        ("unit/test_session_messages.py", "test_repeating_an_append_changes_nothing_and_starts_no_compaction"),
    ),
    "D4": (("unit/test_messages.py", "test_updating_an_unknown_message_is_refused_and_leaves_no_ghost"),),
    "D5": (("unit/test_messages.py", "test_a_path_may_have_any_length"),),
    "D6": (
        ("unit/test_messages.py", "test_order_does_not_depend_on_the_clock"),
        ("unit/test_messages.py", "test_overlays_of_one_instant_are_ordered_by_insertion"),
        ("unit/test_manager_sessions.py", "test_the_session_that_changed_last_is_listed_first_whatever_the_clock_says"),
    ),
    "D7": (
        ("unit/test_full_text.py", "test_all_words_must_match_in_any_order"),
        ("unit/test_full_text.py", "test_results_tell_when_the_message_was_made"),
    ),
    "D8": (
        ("unit/test_full_text.py", "test_substrings_of_cjk_text_and_emoji_are_found"),
        ("unit/test_full_text.py", "test_other_text_is_indexed_as_it_is"),
        ("unit/test_search_entries.py", "test_all_words_must_match_and_nothing_is_an_operator"),
    ),
    "D9": (
        ("unit/test_messages.py", "test_the_time_of_an_overlay_is_that_of_its_making"),
        ("unit/test_session_compaction.py", "test_a_summary_keeps_the_time_at_which_it_was_made"),
    ),
    "D10": (
        ("unit/test_session_compaction.py", "test_a_failed_automatic_run_tells_the_handler_and_ends_in_idle"),
        ("unit/test_session_compaction.py", "test_a_failed_manual_run_gives_none_and_ends_in_idle"),
        ("unit/test_session_compaction.py", "test_only_automatic_compaction_calls_the_handler"),
    ),
    "D11": (
        ("unit/test_messages.py", "test_an_overlay_that_a_client_sends_back_is_not_stored"),
        ("unit/test_messages.py", "test_other_ids_with_the_reserved_prefix_are_refused"),
        (
            "unit/test_session_compaction.py",
            "test_a_transcript_sent_back_by_a_client_stores_no_summary_as_a_message",
        ),
    ),
    "D12": (("unit/test_messages.py", "test_a_message_id_belongs_to_its_session_only"),),
    "D13": (
        ("unit/test_session_messages.py", "test_the_estimate_of_every_frame_is_that_of_the_whole_history"),
        ("unit/test_message_costs.py", "test_the_cost_does_not_grow_with_the_history"),
        ("unit/test_storage_against_recount.py", "test_random_writes_leave_what_a_recount_finds"),
    ),
    "D14": (
        ("unit/test_manager_forks.py", "test_a_fork_tells_one_estimate"),
        ("unit/test_manager_forks.py", "test_a_fork_runs_no_compaction_on_the_way"),
        ("unit/test_manager_forks.py", "test_a_fork_at_an_unknown_message_makes_no_session"),
        ("unit/test_manager_forks.py", "test_a_fork_that_fails_half_way_leaves_nothing"),
    ),
    "D15": (("unit/test_manager_forks.py", "test_a_split_ends_one_session_and_begins_the_next_at_once"),),
    "D16": (
        ("unit/test_manager_sessions.py", "test_impossible_usage_is_refused"),
        ("unit/test_manager_sessions.py", "test_usage_of_an_unknown_session_is_refused"),
    ),
    "D17": (
        ("unit/test_manager_search.py", "test_only_live_messages_are_found"),
        ("unit/test_manager_search.py", "test_another_conversation_is_never_searched"),
        ("unit/test_search_fuzz.py", "test_no_query_raises_or_returns_what_is_anothers"),
    ),
    "D18": (
        ("unit/test_records.py", "test_only_lone_surrogates_are_replaced"),
        ("unit/test_records.py", "test_every_other_character_round_trips"),
        ("unit/test_messages.py", "test_texts_come_back_exactly"),
        ("unit/test_contexts.py", "test_a_lone_surrogate_is_replaced"),
        ("unit/test_session_blocks.py", "test_text_that_is_no_unicode_reaches_no_provider"),
    ),
    "D19": (
        ("unit/test_session_skills.py", "test_a_load_hidden_by_a_summary_is_unloaded_too"),
        ("unit/test_session_skills.py", "test_only_a_finished_successful_load_counts"),
        ("unit/test_session_skills.py", "test_loads_are_unloaded_everywhere_after_any_number_of_nights"),
    ),
    "D20": (("unit/test_session_blocks.py", "test_block_text_cannot_imitate_a_header"),),
    "D21": (
        ("unit/test_session_blocks.py", "test_every_way_to_write_a_block_obeys_max_tokens"),
        ("unit/test_session_blocks.py", "test_titles_share_a_key_exactly_if_they_mean_the_same"),
        ("unit/test_session_blocks.py", "test_a_title_of_letters_that_fold_to_ascii_has_a_plain_key"),
    ),
    "D22": (("unit/test_compaction_prompt.py", "test_structured_input_and_output_are_compact_json"),),
    "D23": (("unit/test_manager_sessions.py", "test_nothing_of_a_deleted_session_stays_and_nothing_else_goes"),),
    "D24": (
        ("unit/test_session_blocks.py", "test_a_write_that_the_provider_refuses_leaves_the_block_as_it_was"),
        ("unit/test_custom_providers.py", "test_a_write_that_is_cancelled_leaves_the_block_as_it_was"),
    ),
    "D25": (("unit/test_manager_messages.py", "test_a_batch_goes_on_at_the_latest_leaf_and_none_starts_a_root"),),
    "D26": (
        ("unit/test_session_blocks.py", "test_readers_load_the_blocks_first"),
        ("unit/test_session_blocks.py", "test_readers_say_what_a_provider_that_fails_says"),
    ),
    "D27": (
        ("unit/test_overlays.py", "test_both_ends_must_be_on_the_path_in_order"),
        ("unit/test_overlays.py", "test_an_unusable_overlay_hides_no_usable_one"),
        ("unit/test_overlays.py", "test_the_newest_of_those_that_start_at_a_message_wins"),
        ("unit/test_messages.py", "test_deleting_an_anchor_moves_it_inside_the_range"),
        ("unit/test_messages.py", "test_an_overlay_whose_end_comes_later_applies_from_then_on"),
        ("unit/test_session_compaction.py", "test_a_summary_is_stored_where_it_can_apply_or_not_at_all"),
        ("unit/test_session_compaction.py", "test_a_summary_of_one_branch_starts_on_that_branch"),
    ),
    "D28": (
        ("unit/test_manager_sessions.py", "test_writes_to_a_session_that_was_never_created_are_refused"),
        ("unit/test_manager_sessions.py", "test_a_session_may_be_used_before_its_row_exists"),
    ),
    "D29": (
        ("unit/test_session_blocks.py", "test_explicit_prompt_stores_and_search_entries_belong_to_their_session"),
        ("unit/test_search_entries.py", "test_entries_belong_to_a_label_and_a_session"),
    ),
    "D30": (
        ("unit/test_full_text.py", "test_a_limit_that_is_no_count_is_refused"),
        ("unit/test_full_text.py", "test_a_limit_is_cut_to_a_whole_number"),
    ),
    "D31": (
        ("unit/test_session_skills.py", "test_every_load_result_of_the_key_is_rewritten_on_every_branch"),
        ("unit/test_session_skills.py", "test_loads_are_unloaded_everywhere_after_any_number_of_nights"),
    ),
    "D32": (
        (
            "unit/test_tools_export.py",
            "test_a_call_whose_input_is_no_object_is_exported_as_an_empty_one_and_stored_untouched",
        ),
        ("unit/test_chat_agent.py", "test_an_input_that_is_no_object_is_told_as_an_empty_one"),
    ),
    "D33": (
        ("unit/test_tokens.py", "test_an_image_or_a_data_url_counts_a_constant"),
        ("unit/test_tokens.py", "test_an_image_inside_a_tool_output_or_a_text_is_bounded"),
        ("unit/test_tokens.py", "test_long_text_that_is_no_image_counts_as_recorded"),
    ),
}


@pytest.mark.parametrize(("row", "path", "name"), [(row, *test) for row, tests in ROWS.items() for test in tests])
def test_the_tests_of_a_row_exist_and_always_run(row: str, path: str, name: str) -> None:
    assert fault_of(path, name) is None, row


def test_every_row_has_a_test() -> None:
    assert list(ROWS) == [f"D{number}" for number in range(1, 34)]


def test_the_rows_are_those_of_the_design() -> None:
    if not DESIGN.is_file():
        pytest.skip("DESIGN.md is not on this machine; the rows of this file are a copy of its")
    assert re.findall(r"^\| (D\d+) \|", DESIGN.read_text(encoding="utf-8"), re.MULTILINE) == list(ROWS)


def test_every_difference_from_the_recorded_values_has_a_row_with_tests() -> None:
    listed = json.loads((TESTS / "conformance" / "divergences.json").read_text(encoding="utf-8"))
    assert {tag for *_, tag in listed} <= {*ROWS, "free"}
