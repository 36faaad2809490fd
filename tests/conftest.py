"""What a run has to say loudly at its end."""

import postgres_server
import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if any(postgres_server.SKIPPED in str(report.longrepr) for report in skipped):
        terminalreporter.write_line(f"WARNING: {postgres_server.SKIPPED}: {postgres_server.reason_missing()}", red=True)
