"""Hibernating between every two operations gives the same results and frames as never hibernating."""

from pathlib import Path

from awake_world import AwakeWorld
from test_vectors import divergences_of, expected_divergences
from vector_files import Scenario
from vector_runner import run


async def test_a_conversation_closed_and_claimed_between_any_two_steps_is_the_same(
    stored_scenario: Scenario, tmp_path: Path, is_default_set: bool
) -> None:
    world = AwakeWorld(stored_scenario, tmp_path)
    outcome = await run(stored_scenario, world, hibernating=True)
    assert not outcome.failures, "\n".join(outcome.failures)
    assert world.sleeps >= len(stored_scenario.steps) - 1
    if is_default_set:
        assert divergences_of(outcome) == expected_divergences(stored_scenario)
