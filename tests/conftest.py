"""What a run has to say loudly at its end."""

import postgres_server
import pytest
import real_conversations


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    if any(postgres_server.SKIPPED in reason for reason in reasons):
        terminalreporter.write_line(f"WARNING: {postgres_server.SKIPPED}: {postgres_server.reason_missing()}", red=True)
    if any(real_conversations.MISSING in reason for reason in reasons):
        terminalreporter.write_line(f"WARNING: {real_conversations.MISSING}", red=True)
