"""Python handles on real conversation actors: hibernation, deaths, recycling, and what a handle may repeat."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from ray_node import Node, message, statistics, until
from serving import processes

import actors
from actors.errors import CallFailed, UnknownAgent, UnknownMethod
from storage.errors import InvalidMessage, OutcomeUnknown


async def test_a_handle_writes_and_reads_and_gets_what_methods_return(node: Node) -> None:
    chat = await actors.connect("probe", "ann")
    await chat.append_message(message("m1"))
    await chat.append_message(message("m2"), "m1")
    assert [m["id"] for m in await chat.get_history()] == ["m1", "m2"]
    assert (await chat.get_message("m1"))["parts"] == [{"type": "text", "text": "hello"}]
    assert await chat.get_message("nothing") is None
    assert await chat.call("increase") == 1
    assert await chat.replace_context_block("memory", "a fact") is None or True


async def test_errors_reach_a_handle_as_what_they_are(node: Node) -> None:
    chat = await actors.connect("probe", "bea")
    with pytest.raises(CallFailed, match="no good"):
        await chat.call("fail", "no good")
    with pytest.raises(UnknownMethod):
        await chat.call("nothing")
    with pytest.raises(InvalidMessage):
        await chat.append_message({"id": "m1"})
    with pytest.raises(UnknownAgent, match=r"'nobody' is served here; there are: probe, slow, vector, conversation\."):
        await actors.connect("nobody", "bea")


async def test_a_handle_survives_the_death_of_its_idle_actor_even_for_calls_that_must_not_be_repeated(
    node: Node,
) -> None:
    chat = await actors.connect("probe", "cem")
    await chat.append_message(message("m1"))
    assert await chat.call("increase") == 1
    os.kill(await chat.call("pid"), signal.SIGKILL)
    assert await chat.call("increase") == 2
    assert [m["id"] for m in await chat.get_history()] == ["m1"]


async def test_a_call_that_was_running_in_an_actor_that_died_has_an_unknown_outcome(node: Node, tmp_path: Path) -> None:
    chat = await actors.connect("slow", "dan")
    mark = tmp_path / "mark"
    running = asyncio.create_task(chat.call("markAndWait", str(mark), 30))

    async def is_running() -> bool:
        return mark.exists()

    await until(is_running)
    for actor in processes():
        if actor.title.startswith("ray::ConversationActor.call"):
            os.kill(actor.pid, signal.SIGKILL)
    with pytest.raises(OutcomeUnknown):
        await asyncio.wait_for(running, 20)
    assert await asyncio.wait_for(chat.get_history(), 20) == []


async def test_appends_during_ten_deaths_are_all_there_once_and_in_order(node: Node) -> None:
    chat = await actors.connect("probe", "eva")
    for number in range(60):
        if number % 6 == 5:
            os.kill(await chat.call("pid"), signal.SIGKILL)
        await chat.append_message(message(f"m{number}"))
    assert [m["id"] for m in await chat.get_history()] == [f"m{number}" for number in range(60)]


async def test_status_tells_the_token_usage_and_wakes_nobody(node: Node) -> None:
    chat = await actors.connect("probe", "fay")
    statuses = chat.status()
    first = asyncio.create_task(anext(statuses))
    await chat.append_message(message("m1", "one two three " * 50))
    status = await asyncio.wait_for(first, 20)
    assert status.phase == "idle"
    assert status.token_estimate > 0
    await statuses.aclose()
    wakes = (await statistics(node))["wakes"]
    unborn = actors.cluster.handle.ConversationHandle("probe", "nobody wakes me")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(unborn.status()), 0.5)
    assert (await statistics(node))["wakes"] == wakes


async def test_status_tells_what_a_compaction_saved_and_takes_no_state_for_a_status(node: Node) -> None:
    chat = await actors.connect("probe", "gil")
    for number in range(6):
        await chat.append_message(message(f"m{number}", "one two three " * 50))
    await chat.compact()
    await chat.call("increase")
    statuses = chat.status()
    status = await asyncio.wait_for(anext(statuses), 20)
    assert status.phase == "idle"
    assert status.tokens_before is not None
    assert 0 < status.token_estimate < status.tokens_before
    await statuses.aclose()
