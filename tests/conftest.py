"""What a run has to say loudly at its end, and which tests `make test-fast` leaves to `make test`."""

import postgres_server
import pytest
import real_conversations

SLOW_MODULES = {  # servers of their own, many random runs, waits for real time limits
    "test_chat_agent",
    "test_compaction_faults",
    "test_compaction_folds",
    "test_compaction_odd_messages",
    "test_manager_arguments",
    "test_manager_random",
    "test_on_postgres",
    "test_readme_programs",
    "test_real_conversations",
    "test_search_fuzz",
    "test_session_faults",
    "test_session_properties",
    "test_skill_buckets",
    "test_slot_log_walks",
    "test_storage_against_recount",
    "test_warm_files",
}
SLOW_NAMES = ("between_any_two_steps", "very_deep_path")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        module = item.path.stem
        if (
            module in SLOW_MODULES
            or module.startswith("test_postgres")
            or any(name in item.name for name in SLOW_NAMES)
        ):
            item.add_marker("slow")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    if any(postgres_server.SKIPPED in reason for reason in reasons):
        terminalreporter.write_line(f"WARNING: {postgres_server.SKIPPED}: {postgres_server.reason_missing()}", red=True)
    if any(real_conversations.MISSING in reason for reason in reasons):
        terminalreporter.write_line(f"WARNING: {real_conversations.MISSING}", red=True)
