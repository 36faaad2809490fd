"""Stopping: no new sockets, running calls finish, then 1012 in batches."""

import asyncio

import pytest
from gateway_clients import answer, call, closed, joined
from gateway_fakes import running_gateway

from actors.conversation.events import Connect, Disconnect, Failure, Rpc


async def test_idle_sockets_are_closed_with_1012_and_no_new_ones_are_taken():
    async with running_gateway() as (gateway, keeper, url):
        opened = [await joined(url) for _ in range(120)]
        await gateway.drain(5)
        assert [await closed(socket) for socket in opened] == [(1012, "restarting")] * 120
        with pytest.raises(OSError):
            await joined(url)
        assert len(keeper.commands(Disconnect)) == 120


async def test_a_running_call_finishes_before_its_socket_is_closed():
    async with running_gateway() as (gateway, keeper, url):
        socket = await joined(url)
        await call(socket, "block", "gate")
        await keeper.until(lambda: bool(keeper.commands(Rpc)))
        draining = asyncio.create_task(gateway.drain(5))
        await asyncio.sleep(0)
        keeper.gates["gate"].set()
        assert (await answer(socket))["result"] == "gate"
        assert (await closed(socket))[0] == 1012
        await draining


async def test_a_call_that_comes_during_the_drain_is_refused_as_not_executed():
    async with running_gateway() as (gateway, keeper, url):
        socket = await joined(url)
        await call(socket, "block", "gate", id="long")
        await keeper.until(lambda: bool(keeper.commands(Rpc)))
        draining = asyncio.create_task(gateway.drain(5))
        await asyncio.sleep(0)
        await call(socket, "appendMessage", {"id": "m"}, id="late")
        assert (await answer(socket, "late"))["error"].startswith("This node is stopping; nothing was done")
        keeper.gates["gate"].set()
        assert (await answer(socket, "long"))["success"]
        await draining
        assert len(keeper.commands(Rpc)) == 1


async def test_after_the_deadline_the_last_frames_of_a_call_still_arrive():
    async with running_gateway() as (gateway, keeper, url):
        socket = await joined(url)
        await call(socket, "block", "never")
        await keeper.until(lambda: bool(keeper.commands(Rpc)))
        await gateway.drain(0.05)
        number = keeper.commands(Connect)[0].connection
        gateway.event(Failure(number, b'"1"', "It is not known", "outcome_unknown", was_executed=True))
        assert (await answer(socket))["error"] == "It is not known"
        assert (await closed(socket))[0] == 1012


async def test_close_ends_what_is_left():
    async with running_gateway() as (gateway, keeper, url):
        socket = await joined(url)
        await call(socket, "block", "never")
        await keeper.until(lambda: bool(keeper.commands(Rpc)))
        await gateway.close()
        assert (await closed(socket))[0] == 1012
        assert gateway.statistics()["sockets"] == 0
