"""Runs one scenario in a world and accounts for every step, exactly as strictly as FORMAT.md 2.3 says."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from vector_files import Scenario
from vector_matching import Bindings, Unbound, is_timestamp, match, substitute
from vector_world import World

PATIENCE = 0.02
"""Of a recorded wait, so much is waited: they were there because the reference's clock knows whole seconds only (FORMAT.md 6)."""

MISTAKES = (AssertionError, AttributeError, IndexError, KeyError, NameError, NotImplementedError, TypeError)
"""Errors that no operation may answer with, whatever the vector expects: they say that the program is wrong."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """A difference that is allowed: at a tagged step, or (`is_excused`) at a later one whose state may follow from it."""

    step: int
    tag: str
    is_excused: bool
    detail: str


@dataclass(slots=True)
class Outcome:
    scenario: Scenario
    passed_steps: int = 0
    divergences: list[Divergence] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Answer:
    value: Any = None
    error: Exception | None = None


async def run(scenario: Scenario, world: World, *, hibernating: bool = False) -> Outcome:
    """Run all steps; with `hibernating`, the conversation sleeps and wakes between any two of them."""
    outcome = Outcome(scenario)
    bindings: Bindings = {}
    tag: str | None = None
    await world.open()
    try:
        for index, step in enumerate(scenario.steps):
            if hibernating and index:
                await world.hibernate()
            detail, bindings = await _run_step(scenario, world, index, step, bindings)
            if detail is None:
                outcome.passed_steps += 1
                continue
            if "quirk" in step:
                tag = tag_of(step["quirk"])
                outcome.divergences.append(Divergence(index, tag, False, detail))
            elif tag is not None:
                outcome.divergences.append(Divergence(index, tag, True, detail))
            else:
                outcome.failures.append(detail)
    finally:
        await world.close()
    return outcome


def tag_of(quirk: str) -> str:
    return quirk.split(":", 1)[0]


async def _run_step(
    scenario: Scenario, world: World, index: int, step: dict[str, Any], bindings: Bindings
) -> tuple[str | None, Bindings]:
    """What differs (None: nothing), and the bindings after the step."""
    world.frames.clear()
    title = f"step {index} {step['op']}"
    try:
        answer = await _perform(world, step, bindings)
        await world.settled()
    except Unbound as unbound:
        return f"{title}: {unbound} stands for nothing yet", bindings
    detail, bindings = _compare(step, answer, bindings)
    if detail is None and scenario.broadcasts is not None:
        detail, bindings = _compare_frames(scenario, index, world.frames, bindings)
    if detail is None and scenario.broadcasts is None and world.frames:
        detail = f"frames were sent where nobody listens: {world.frames}"
    return (None if detail is None else f"{title}: {detail}"), bindings


async def _perform(world: World, step: dict[str, Any], bindings: Bindings) -> Answer:
    args = substitute(step.get("args", {}), bindings)
    session = substitute(step.get("session"), bindings)
    try:
        return Answer(value=await _dispatch(world, step["op"], args, session))
    except Unbound:
        raise
    except Exception as exc:
        return Answer(error=exc)


async def _dispatch(world: World, op: str, args: dict[str, Any], session: str | None) -> Any:
    harness = world.harness
    match op:
        case "restart":
            return await world.restart()
        case "sleep":
            return await asyncio.sleep(args["ms"] / 1000 * PATIENCE)
        case "get_summarizer_calls":
            return _taken(harness.compaction_calls)
        case "last_summary_prompt_contains":
            return [text in harness.last_summary_prompt for text in args["texts"]]
        case "get_counter_calls":
            return _taken(harness.counter_calls)
        case "get_compaction_errors":
            return _taken(harness.compaction_errors)
    return await world.perform(op, args, session)


def _taken(recorded: list[Any]) -> list[Any]:
    taken = list(recorded)
    recorded.clear()
    return taken


def _compare(step: dict[str, Any], answer: Answer, bindings: Bindings) -> tuple[str | None, Bindings]:
    error = answer.error
    if "expect_error" in step:
        if error is None:
            return f"an error was expected, not {answer.value!r}", bindings
        if isinstance(error, MISTAKES):
            return f"a mistake of the program: {error!r}", bindings
        if step["expect_error"] not in str(error):
            return f"{step['expect_error']!r} was expected in the error {error!r}", bindings
        return None, bindings
    if error is not None:
        return f"raised {error!r}", bindings
    for value in _readings(step, answer.value):
        matched = match(step["expect"], value, bindings, unordered=step.get("match") == "unordered")
        if matched is not None:
            return None, matched
    return f"expected {_short(step['expect'])}, got {_short(answer.value)}", bindings


def _readings(step: dict[str, Any], value: Any) -> Iterator[Any]:
    """The value; for a search also without the ``createdAt`` that its results may carry in addition."""
    yield value
    if step["op"] == "search" and isinstance(value, list) and all(isinstance(item, dict) for item in value):
        yield [
            {key: part for key, part in item.items() if key != "createdAt" or not is_timestamp(part)} for item in value
        ]


def _compare_frames(
    scenario: Scenario, index: int, frames: list[dict[str, Any]], bindings: Bindings
) -> tuple[str | None, Bindings]:
    expected = [item["frame"] for item in scenario.broadcasts or () if item["step"] == index]
    matched = match(expected, frames, bindings)
    if matched is None:
        return f"expected frames {_short(expected)}, got {_short(frames)}", bindings
    return None, matched


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 600 else f"{text[:600]}…"
