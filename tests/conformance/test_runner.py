"""The runner is as strict as FORMAT.md says: what must fail fails, what may differ is counted apart."""

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from vector_files import DEFAULT_DIRECTORY, Scenario, expand, is_same_set, load_scenarios, storage_only
from vector_matching import Unbound, match, substitute
from vector_operations import plain
from vector_runner import run
from vector_summaries import seen_in
from vector_world import World

from actors.session import ContextBlock
from compaction import build_summary_prompt

NOW = datetime.now(UTC)


class Scripted(World):
    """Answers what the test says instead of asking a session; an exception is raised."""

    def __init__(
        self, scenario: Scenario, answers: list[Any], frames: list[list[dict[str, Any]]] | None = None
    ) -> None:
        super().__init__(scenario, Path())
        self.answers = iter(answers)
        self.scripted_frames = iter(frames or [])
        self.asked: list[dict[str, Any]] = []

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def perform(self, op: str, args: dict[str, Any], session_id: str | None) -> Any:
        self.asked.append(args)
        self.frames += next(self.scripted_frames, [])
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def scenario(*steps: dict[str, Any], broadcasts: tuple[dict[str, Any], ...] | None = None, **setup: Any) -> Scenario:
    steps = tuple({"op": "get_message", **step} for step in steps)
    return Scenario("area", "name", {"mode": "session", **setup}, steps, broadcasts)


async def outcome(steps: Scenario, *answers: Any, frames: Any = None) -> tuple[int, list[tuple[int, str, bool]], int]:
    result = await run(steps, Scripted(steps, list(answers), frames))
    divergences = [(divergence.step, divergence.tag, divergence.is_excused) for divergence in result.divergences]
    return result.passed_steps, divergences, len(result.failures)


async def test_a_difference_at_an_untagged_step_fails() -> None:
    assert await outcome(scenario({"expect": 1}, {"expect": 2}), 1, 3) == (1, [], 1)


async def test_a_difference_at_a_tagged_step_diverges_and_excuses_what_follows() -> None:
    steps = scenario(
        {"expect": 1, "quirk": "D7: a reason"},
        {"expect": 2},
        {"expect": 3},
        {"expect": 4, "quirk": "free: whatever"},
        {"expect": 5},
    )
    differences = [(0, "D7", False), (2, "D7", True), (3, "free", False), (4, "free", True)]
    assert await outcome(steps, 0, 2, 0, 0, 0) == (1, differences, 0)


async def test_a_difference_before_a_tag_or_after_one_that_matched_fails() -> None:
    steps = scenario({"expect": 1}, {"expect": 2, "quirk": "D7: a reason"}, {"expect": 3})
    assert await outcome(steps, 0, 2, 0) == (1, [], 2)


async def test_an_error_must_hold_the_expected_text_and_be_no_mistake_of_the_program() -> None:
    assert await outcome(scenario({"expect_error": "disk"}), OSError("disk full")) == (1, [], 0)
    assert await outcome(scenario({"expect_error": "disk"}), OSError("other")) == (0, [], 1)
    assert await outcome(scenario({"expect_error": ""}), OSError("anything")) == (1, [], 0)
    assert await outcome(scenario({"expect_error": ""}), AttributeError("no such method")) == (0, [], 1)
    assert await outcome(scenario({"expect_error": ""}), None) == (0, [], 1)
    assert await outcome(scenario({"expect": None}), OSError("anything")) == (0, [], 1)


async def test_frames_are_compared_completely_and_in_order() -> None:
    idle, busy = {"phase": "idle"}, {"phase": "compacting"}
    steps = scenario(
        {"expect": None}, broadcasts=({"step": 0, "frame": busy}, {"step": 0, "frame": idle}), broadcast=True
    )
    assert await outcome(steps, None, frames=[[busy, idle]]) == (1, [], 0)
    for wrong in ([idle, busy], [busy], [busy, idle, idle], [{"phase": "compacting", "more": 1}, idle]):
        assert await outcome(steps, None, frames=[wrong]) == (0, [], 1)
    assert await outcome(scenario({"expect": None}), None, frames=[[idle]]) == (0, [], 1)


async def test_only_search_results_may_carry_a_time_more() -> None:
    found = [{"id": "m1"}]
    timed = [{"id": "m1", "createdAt": NOW.strftime("%Y-%m-%d %H:%M:%S")}]
    assert await outcome(scenario({"op": "search", "expect": found}), timed) == (1, [], 0)
    assert await outcome(scenario({"op": "get_history", "expect": found}), timed) == (0, [], 1)
    assert await outcome(scenario({"op": "search", "expect": found}), [{"id": "m1", "createdAt": "soon"}]) == (0, [], 1)


async def test_a_bound_placeholder_stands_in_later_arguments() -> None:
    steps = scenario({"expect": "$uuid1"}, {"args": {"id": "compaction_$uuid1"}, "expect": ["x-$uuid1"]})
    world = Scripted(steps, ["abc", ["x-abc"]])
    assert (await run(steps, world)).passed_steps == 2
    assert world.asked == [{}, {"id": "compaction_abc"}]


async def test_a_placeholder_that_nothing_bound_fails_the_step() -> None:
    assert await outcome(scenario({"args": {"id": "$uuid1"}, "expect": None}), None) == (0, [], 1)


def test_placeholders_are_unified() -> None:
    assert match(["$uuid1", "$uuid1"], ["a", "a"], {}) == {"$uuid1": "a"}
    assert match(["$uuid1", "$uuid1"], ["a", "b"], {}) is None
    assert match(["$uuid1", "$uuid2"], ["a", "a"], {}) is None
    assert match("compaction_$uuid1", "compaction_a", {"$uuid1": "a"}) == {"$uuid1": "a"}
    assert match("compaction_$uuid1", "compaction_b", {"$uuid1": "a"}) is None
    assert match("$uuid1", "with space", {}) is None
    assert match("$uuid1", "", {}) is None
    assert substitute({"a": ["x$uuid1y"]}, {"$uuid1": "!"}) == {"a": ["x!y"]}
    with pytest.raises(Unbound):
        substitute("$uuid2", {})


def test_a_multiset_needs_one_consistent_assignment() -> None:
    expected = [{"id": "$uuid1", "of": "$uuid2"}, {"id": "$uuid2", "of": "x"}]
    actual = [{"id": "b", "of": "x"}, {"id": "a", "of": "b"}]
    assert match(expected, actual, {}, unordered=True) == {"$uuid1": "a", "$uuid2": "b"}
    assert match(expected, actual, {}) is None
    assert match(expected, [actual[0], {"id": "a", "of": "c"}], {}, unordered=True) is None
    assert match([1, 1, 2], [1, 2, 2], {}, unordered=True) is None


@pytest.mark.parametrize(
    ("expected", "actual", "is_same"),
    [
        (2, 2.0, True),
        (1 / 3, 0.33333333333333, True),
        (1, 1.00001, False),
        (1, True, False),
        (0, None, False),
        (None, None, True),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ({"a": 1}, {}, False),
        ([1], [1, 1], False),
        ("1", 1, False),
        ("$time", NOW.strftime("%Y-%m-%dT%H:%M:%S.123Z"), True),
        ("$time", NOW.strftime("%Y-%m-%d %H:%M:%S"), True),
        ("$time", "2001-02-03T04:05:06.789Z", False),
        ("$time", "", False),
        ("$time_or_empty", "", True),
    ],
)
def test_values_are_compared_as_the_format_says(expected: Any, actual: Any, is_same: bool) -> None:
    assert (match(expected, actual, {}) is not None) is is_same


def test_repeats_are_expanded_anywhere() -> None:
    assert expand({"a": [{"$repeat": ["ab", 2]}]}) == {"a": ["abab"]}


@pytest.mark.parametrize(
    ("setup", "operations", "is_storage_only"),
    [
        ({}, ["append_message", "restart"], True),
        ({"context": [{"label": "a", "provider": {"kind": "writable"}}]}, [], False),
        ({"context": [{"label": "a", "provider": {"kind": "skill"}}]}, [], True),
        ({"context": [{"label": "a", "provider": {"kind": "skill", "writable": True}}]}, [], False),
        ({"cached_prompt": {"kind": "writable"}}, [], False),
        ({}, ["add_context"], False),
        ({"mode": "postgres"}, [], False),
        ({"context": [{"label": "a"}]}, ["freeze_system_prompt"], True),
        ({"context": [{"label": "a"}]}, ["freeze_system_prompt"] * 2, False),
        ({"context": [{"label": "a"}]}, ["freeze_system_prompt", "get_counter_calls"], False),
        ({"context": [{"label": "a"}], "cached_prompt": True}, ["freeze_system_prompt"] * 2, True),
        ({}, ["freeze_system_prompt"] * 2, True),
    ],
)
def test_storage_only_is_decided_as_the_format_says(
    setup: dict[str, Any], operations: list[str], is_storage_only: bool
) -> None:
    steps = scenario(*({"op": op} for op in operations), **setup)
    assert storage_only(steps) is is_storage_only


def test_loading_a_skill_by_tool_is_not_storage_only() -> None:
    assert not storage_only(scenario({"op": "call_tool", "args": {"name": "load_context", "input": {}}}))


@pytest.mark.parametrize("mode", ["session", "manager", "constructor"])
async def test_an_operation_that_does_not_exist_is_a_failure(tmp_path: Path, mode: str) -> None:
    unknown = scenario({"op": "no_such_operation", "expect_error": ""}, mode=mode)
    assert (await run(unknown, World(unknown, tmp_path))).failures


@pytest.mark.parametrize("document", ["{}", '{"format": 2, "area": "a", "scenarios": []}'])
def test_a_file_of_another_format_is_refused(tmp_path: Path, document: str) -> None:
    (tmp_path / "a.json").write_text(document)
    with pytest.raises(ValueError, match="format 1"):
        load_scenarios(tmp_path)


def test_a_directory_without_vectors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no vector files"):
        load_scenarios(tmp_path)


def said(name: str, text: str | None = None) -> dict[str, Any]:
    parts = [{"type": "text", "text": f"the text of message {name}" if text is None else text}]
    return {"id": name, "role": "user", "parts": parts}


def seen(shown: list[dict[str, Any]], visible: list[dict[str, Any]], previous: str | None = None) -> Any:
    found = seen_in(build_summary_prompt(shown, previous, 1234), visible)
    return found if "unclear_prompt" in found else (found["previous_summary"], found["turn_texts"], found["budget"])


MESSAGES = [said(name) for name in "abcd"]
TEXTS = [message["parts"][0]["text"] for message in MESSAGES]


def test_what_a_summarizer_saw_is_exactly_what_its_prompt_shows() -> None:
    assert seen(MESSAGES[1:3], MESSAGES) == (None, TEXTS[1:3], 1234)
    assert seen(MESSAGES[1:3], MESSAGES, "what was before") == ("what was before", TEXTS[1:3], 1234)
    assert seen([said("x", "")], [said("x", ""), *MESSAGES]) == (None, [], 1234)


def test_a_turn_that_is_left_out_moved_or_shown_twice_makes_another_list() -> None:
    assert seen([MESSAGES[0], MESSAGES[2]], MESSAGES) == (None, [TEXTS[0], TEXTS[2]], 1234)
    assert seen([MESSAGES[1], MESSAGES[0]], MESSAGES) == (None, [TEXTS[1], TEXTS[0]], 1234)
    assert seen([MESSAGES[0], MESSAGES[0]], MESSAGES) == (None, [TEXTS[0], TEXTS[0]], 1234)
    short = [said("p", "no"), said("q", "yes"), said("r", "no")]
    for shown in (short, short[:2], short[1:], short[::2]):
        assert seen(shown, short) == (None, [message["parts"][0]["text"] for message in shown], 1234)


def test_a_turn_that_holds_another_is_told_from_it() -> None:
    first, both = said("a", "first line"), said("b", "first line\nsecond line")
    assert seen([both], [first, both]) == (None, ["first line\nsecond line"], 1234)
    assert seen([first, both], [first, both]) == (None, ["first line", "first line\nsecond line"], 1234)


def test_a_previous_summary_counts_only_between_its_markers() -> None:
    summary = said("compaction_1", "what was before, in short")
    assert seen([summary, *MESSAGES], [summary, *MESSAGES]) == (None, ["what was before, in short", *TEXTS], 1234)
    beside = build_summary_prompt(MESSAGES, None, 7) + "\n\nwhat was before, in short"
    assert "unclear_prompt" in seen_in(beside, [summary, *MESSAGES])


def test_a_text_that_is_changed_or_stands_elsewhere_is_not_shown() -> None:
    prompt = build_summary_prompt(MESSAGES[:2], None, 7)
    assert seen_in(prompt.replace(TEXTS[0], TEXTS[0][:-1]), MESSAGES)["turn_texts"] == [TEXTS[1]]
    for wrong in (
        prompt.replace("===", "---"),
        TEXTS[3] + prompt,
        prompt.replace(TEXTS[0], f"{TEXTS[0]} and {TEXTS[3]}"),
        prompt.replace("about 7 tokens", "about 7 tokens, or about 8 tokens"),
        prompt.replace("about 7 tokens", "in some words"),
    ):
        assert "unclear_prompt" in seen_in(wrong, MESSAGES)


def test_models_are_compared_as_they_write_themselves() -> None:
    assert plain(ContextBlock(label="soul")) == {
        "label": "soul",
        "content": "",
        "tokens": 0,
        "writable": False,
        "isSkill": False,
        "isSearchable": False,
    }


def test_a_model_that_writes_a_value_it_has_not_is_seen_to_do_so() -> None:
    class Careless(BaseModel):
        given: int | None = None

    assert plain([Careless()]) == [{"given": None}]


def test_the_default_set_is_known_by_its_content(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(DEFAULT_DIRECTORY, tmp_path / "copy"))
    (copy / "README.md").write_text("no vectors")
    assert is_same_set(copy, DEFAULT_DIRECTORY)
    first = min(copy.glob("*.json"))
    first.write_bytes(first.read_bytes() + b"\n")
    assert not is_same_set(copy, DEFAULT_DIRECTORY)
    first.unlink()
    assert not is_same_set(copy, DEFAULT_DIRECTORY)
