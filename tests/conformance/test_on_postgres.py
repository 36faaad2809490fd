"""The scenarios of the other areas on PostgreSQL.

What the built-in storage does by itself is asked of PostgreSQL's providers by name: blocks without a provider, the cached prompt
and searchable blocks. An owner cannot broadcast there, so frames are not compared. Everything that is left out is in this file,
with its reason.
"""

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from test_vectors import divergences_of, expected_divergences
from vector_files import DEFAULT_DIRECTORY, Scenario, load_scenarios
from vector_runner import run, tag_of
from vector_world import World

from actors.session import Session

WHOLE_AREAS = {
    "postgres": "runs on PostgreSQL in any case (test_vectors.py)",
    "boundaries": "pure functions, no storage",
    "sanitize_tool_pairs": "pure functions, no storage",
    "truncate": "pure functions, no storage",
}

MODES = {
    "manager": "a session manager keeps its sessions in its SQLite file",
    "minimal_provider": "is about a storage without search and recent history, which this one has",
}

HERE = "postgres"
"""The tag of a step that differs here and not with the built-in storage."""

OPERATIONS = {
    "get_history_row_stats": "answers null with this storage (area postgres, scenario empty#1); the other steps are run",
}

LONG = {"messages/very_deep_path": "takes long; with TESTS_LONG=1 (test_postgres_messages.py reads as long a history)"}

STEMMER = "the Snowball stemmer and FTS5's Porter stemmer differ in 'deployment' and the like (FORMAT.md section 5)"
STOP_WORDS = "the configuration english has stop words (FORMAT.md section 5)"
DIACRITICS = "the configuration english keeps diacritics (FORMAT.md section 5)"
PARSER = "the parser takes 3.14.1 and the like for one word (FORMAT.md section 5)"
RANK = "ts_rank does not divide by the length of the text (FORMAT.md section 5)"

OTHER_STEPS = {
    "random_sequences/seq_3": (STEMMER, [18]),
    "random_sequences/seq_6": (STEMMER, [29]),
    "random_sequences/seq_27": (STEMMER, [15]),
    "search/stemming#1": (STEMMER, [10, 14]),
    "search/phrase_semantics#1": (STOP_WORDS, [16]),
    "search/phrase_semantics#2": (STOP_WORDS, [16]),
    "search/quotes_and_operators#1": (STOP_WORDS, [10, 12, 16]),
    "search/quotes_and_operators#2": (STOP_WORDS, [10, 12, 16]),
    "search/ranking#1": (RANK, [4, 5]),
    "search/ranking#2": (RANK, [4, 5]),
    "search/compacted_messages_still_found#2": (STOP_WORDS, [5]),
    "search/diacritics_and_case#1": (DIACRITICS, [2, 3, 4, 5]),
    "search/diacritics_and_case#2": (DIACRITICS, [2, 3, 4]),
    "search/numbers_and_punctuation": (PARSER, [5, 6, 8, 9, 10, 11, 12, 15, 17]),
    "search_provider/lifecycle#1": (STEMMER, [8, 11]),
    "search_provider/query_semantics": (STOP_WORDS, [3, 6, 7, 10]),
    "search_provider/query_semantics_2#1": (STEMMER, [2, 9]),
}
"""Searches whose results differ here, and must, though not with the built-in storage. All other steps are compared as ever."""

SAME_BUT_FOR_FRAMES = {
    "auto_compaction/threshold_is_exclusive#1": [7],
    "auto_compaction/threshold_is_exclusive#2": [7],
    "auto_compaction/function_failure#1": [0],
    "auto_compaction/function_failure#2": [0],
    "compaction_run/summarizer_failure#1": [8],
    "compaction_run/summarizer_failure#2": [8],
    "compaction_run/compact_counter_failure": [8],
}
"""Steps that differ with the built-in storage in their frames only."""

PROVIDERS = {"sqlite": "pg_context", "agent_search": "pg_search"}


class PostgresWorld(World):
    """The conversation of a scenario, as the same setup in mode ``postgres``."""

    async def open(self) -> None:
        original, self.scenario = self.scenario, dataclasses.replace(self.scenario, setup={"mode": "postgres"})
        await super().open()
        self.scenario = original

    def session(self, session_id: str | None) -> Session:
        self.harness.setup = self._translated(session_id)
        return super().session(session_id)

    async def perform(self, op: str, args: dict[str, Any], session_id: str | None) -> Any:
        if op == "add_context":
            args = self._block(args, session_id)
        value = await super().perform(op, args, session_id)
        if op == "search":  # text parts are joined by a newline (area postgres, search#1), elsewhere by a space
            return [{**found, "content": found["content"].replace("\n", " ")} for found in value]
        return value

    @property
    def _is_wired(self) -> bool:
        """Whether what is given no provider is kept in the session's own storage."""
        return self.scenario.setup["mode"] == "session"

    def _translated(self, session_id: str | None) -> dict[str, Any]:
        setup = {**self.scenario.setup, "mode": "postgres"}
        setup["context"] = [self._block(block, session_id) for block in setup.get("context", [])]
        if setup.get("cached_prompt") is True:
            setup["cached_prompt"] = {"kind": "pg_context", "key": "_system_prompt"} if self._is_wired else None
        elif setup.get("cached_prompt"):
            setup["cached_prompt"] = _provider(setup["cached_prompt"])
        return setup

    def _block(self, block: dict[str, Any], session_id: str | None) -> dict[str, Any]:
        provider = block.get("provider") or {}
        if provider.get("kind", "auto") not in ("auto", "none"):
            return {**block, "provider": _provider(provider)}
        if not self._is_wired:
            return block
        return {**block, "provider": {"kind": "pg_context", "key": f"{block['label']} of {session_id}"}}


def _provider(provider: dict[str, Any]) -> dict[str, Any]:
    return {**provider, "kind": PROVIDERS.get(provider["kind"], provider["kind"])}


def name_of(scenario: Scenario) -> str:
    return f"{scenario.area}/{scenario.name}"


def reason_left_out(scenario: Scenario) -> str | None:
    long = LONG.get(name_of(scenario)) if os.environ.get("TESTS_LONG") != "1" else None
    return WHOLE_AREAS.get(scenario.area) or MODES.get(scenario.setup["mode"]) or long


def translated(scenario: Scenario) -> tuple[Scenario, list[int]]:
    """The scenario without what is not compared, its other searches tagged, and where its steps are in the original."""
    reason, others = OTHER_STEPS.get(name_of(scenario), ("", []))
    kept = [index for index, step in enumerate(scenario.steps) if step["op"] not in OPERATIONS]
    steps = [
        {"quirk": f"{HERE}: {reason}", **scenario.steps[index]} if index in others else scenario.steps[index]
        for index in kept
    ]
    return dataclasses.replace(scenario, steps=tuple(steps), broadcasts=None), kept


def expected_here(recorded: Scenario) -> list[tuple[int, str]]:
    """Where exactly the scenario differs from the recorded values on PostgreSQL."""
    _, others = OTHER_STEPS.get(name_of(recorded), ("", []))
    same = SAME_BUT_FOR_FRAMES.get(name_of(recorded), [])
    differing = {(index, tag_of(recorded.steps[index].get("quirk", HERE))) for index in others}
    for index, tag in expected_divergences(recorded):
        if recorded.steps[index]["op"] not in OPERATIONS and index not in same:
            differing.add((index, tag))
    return sorted(differing)


def chosen() -> list[Scenario]:
    scenarios = load_scenarios(DEFAULT_DIRECTORY)
    return [item for item in scenarios if reason_left_out(item) is None]


@pytest.mark.parametrize("recorded", chosen(), ids=name_of)
async def test_a_scenario_is_the_same_on_postgres(recorded: Scenario, tmp_path: Path) -> None:
    scenario, places = translated(recorded)
    outcome = await run(scenario, PostgresWorld(scenario, tmp_path))
    assert not outcome.failures, "\n".join(outcome.failures)
    differing = [(places[step], tag) for step, tag in divergences_of(outcome)]
    assert differing == expected_here(recorded), "\n".join(item.detail for item in outcome.divergences)


def test_only_searches_may_differ() -> None:
    scenarios = {name_of(scenario): scenario for scenario in load_scenarios(DEFAULT_DIRECTORY)}
    for name, (_, indexes) in OTHER_STEPS.items():
        for step in (scenarios[name].steps[index] for index in indexes):
            assert step["op"] == "search" or step["args"]["name"] == "search_context", (name, step)


def test_what_is_left_out_exists_and_is_the_smaller_part() -> None:
    scenarios = load_scenarios(DEFAULT_DIRECTORY)
    listed = {name_of(scenario): scenario for scenario in scenarios}
    assert [name for name in (*LONG, *OTHER_STEPS, *SAME_BUT_FOR_FRAMES) if name not in listed] == []
    for name, indexes in SAME_BUT_FOR_FRAMES.items():
        assert set(indexes) <= {index for index, _ in expected_divergences(listed[name])}
    assert [area for area in WHOLE_AREAS if not any(scenario.area == area for scenario in scenarios)] == []
    without_manager = [item for item in scenarios if item.setup["mode"] not in MODES and item.area not in WHOLE_AREAS]
    assert len(without_manager) - len(chosen()) <= len(LONG)
    assert len(without_manager) > 300
