"""`--vectors DIR`, one test per scenario, and the account at the end (FORMAT.md section 2.3)."""

from collections import Counter
from pathlib import Path

import pytest
from vector_files import DEFAULT_DIRECTORY, is_same_set, load_scenarios, storage_only
from vector_runner import Outcome


class Account:
    """What the scenarios of this run came to."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def lines(self) -> list[str]:
        diverged: Counter[str] = Counter()
        excused: Counter[str] = Counter()
        for outcome in self.outcomes:
            for divergence in outcome.divergences:
                (excused if divergence.is_excused else diverged)[divergence.tag] += 1
        whole = [outcome for outcome in self.outcomes if not outcome.failures and not outcome.divergences]
        parted = [outcome for outcome in self.outcomes if not outcome.failures and outcome.divergences]
        failed = [outcome for outcome in self.outcomes if outcome.failures]
        steps = sum(outcome.passed_steps for outcome in self.outcomes)
        lines = [f"passed:   {len(whole)} scenarios without any difference; {steps} steps in all"]
        lines.append(f"diverged: {len(parted)} scenarios; steps per tag: {_listed(diverged)}")
        lines.append(f"excused:  later steps per tag: {_listed(excused)}")
        lines.append(f"failed:   {len(failed)} scenarios, {sum(len(outcome.failures) for outcome in failed)} steps")
        lines += [f"  {outcome.scenario.area}/{outcome.scenario.name}" for outcome in failed]
        return lines


def _listed(counter: Counter[str]) -> str:
    pairs = sorted(counter.items(), key=lambda pair: (pair[0][:1], len(pair[0]), pair[0]))
    return ", ".join(f"{name} {number}" for name, number in pairs) or "none"


ACCOUNT = pytest.StashKey[Account]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--vectors", type=Path, default=None, help="directory of conformance vectors to run")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ACCOUNT] = Account()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    name = next((name for name in ("scenario", "stored_scenario") if name in metafunc.fixturenames), None)
    if name is None:
        return
    scenarios = load_scenarios(vectors_directory(metafunc.config))
    chosen = [scenario for scenario in scenarios if name == "scenario" or storage_only(scenario)]
    metafunc.parametrize(name, [pytest.param(item, id=f"{item.area}/{item.name}") for item in chosen])


def vectors_directory(config: pytest.Config) -> Path:
    given: Path | None = config.getoption("--vectors")
    return (given or DEFAULT_DIRECTORY).resolve()


@pytest.fixture
def account(pytestconfig: pytest.Config) -> Account:
    return pytestconfig.stash[ACCOUNT]


@pytest.fixture
def is_default_set(pytestconfig: pytest.Config) -> bool:
    return is_same_set(vectors_directory(pytestconfig), DEFAULT_DIRECTORY)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    account = config.stash[ACCOUNT]
    if not account.outcomes:
        return
    terminalreporter.section("conformance")
    for line in account.lines():
        terminalreporter.write_line(line)
