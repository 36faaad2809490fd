"""The recorded vectors against the library: one test per scenario."""

import json
from pathlib import Path

import pytest
from vector_files import DEFAULT_DIRECTORY, Scenario, load_scenarios
from vector_runner import Outcome, run
from vector_world import World

DIVERGENCES = Path(__file__).parent / "divergences.json"


def known_divergences() -> list[tuple[str, str, int, str]]:
    return [tuple(entry) for entry in json.loads(DIVERGENCES.read_text(encoding="utf-8"))]


async def test_scenario(scenario: Scenario, tmp_path: Path, account, is_default_set: bool) -> None:
    outcome = await run(scenario, World(scenario, tmp_path))
    account.outcomes.append(outcome)
    assert not outcome.failures, "\n".join(outcome.failures)
    if is_default_set:
        assert divergences_of(outcome) == expected_divergences(scenario), "\n".join(
            divergence.detail for divergence in outcome.divergences
        )


async def test_a_scenario_whose_state_is_all_in_storage_may_hibernate_between_any_two_steps(
    stored_scenario: Scenario, tmp_path: Path, is_default_set: bool
) -> None:
    outcome = await run(stored_scenario, World(stored_scenario, tmp_path), hibernating=True)
    assert not outcome.failures, "\n".join(outcome.failures)
    if is_default_set:
        assert divergences_of(outcome) == expected_divergences(stored_scenario)


def divergences_of(outcome: Outcome) -> list[tuple[int, str]]:
    return [(divergence.step, divergence.tag) for divergence in outcome.divergences]


def expected_divergences(scenario: Scenario) -> list[tuple[int, str]]:
    return [(step, tag) for area, name, step, tag in known_divergences() if (area, name) == scenario.key]


def test_every_known_divergence_belongs_to_a_scenario() -> None:
    known = {scenario.key for scenario in load_scenarios(DEFAULT_DIRECTORY)}
    assert [entry for entry in known_divergences() if entry[:2] not in known] == []


def test_the_copy_of_the_vectors_is_unchanged() -> None:
    original = Path(__file__).parents[3] / "shared" / "conformance"
    if not original.is_dir():
        pytest.skip("the originals are not on this machine")
    assert {path.name: path.read_bytes() for path in original.iterdir()} == {
        path.name: path.read_bytes() for path in DEFAULT_DIRECTORY.iterdir()
    }
