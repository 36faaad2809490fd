"""Real actors that hold one conversation after another, and a gateway that dies under its handles."""

import asyncio
from pathlib import Path

from ray_node import message, serving, statistics, until

import actors
from actors import Client


async def test_twenty_conversations_share_few_actors_and_leave_them_clean(local_ray: None, tmp_path: Path) -> None:
    with serving(tmp_path, max_awake=2, spares=1, quantum_seconds=0.02) as node:
        chats = [await actors.connect("probe", f"guest {number}") for number in range(20)]
        for round_ in range(3):
            for chat in chats:
                await chat.append_message(message(f"m{round_}"))
        await asyncio.gather(*(chat.append_message(message("last")) for chat in chats))
        for chat in chats:
            assert [m["id"] for m in await chat.get_history()] == ["m0", "m1", "m2", "last"]
        found = await statistics(node)
        assert found["starts"] <= 3
        assert found["wakes"] >= 60
    assert "left behind" not in node.log
    assert "ERROR" not in node.log
    assert "CRITICAL" not in node.log


async def test_a_conversation_sees_nothing_of_the_one_that_its_actor_held_before(
    local_ray: None, tmp_path: Path
) -> None:
    with serving(tmp_path, max_awake=1, spares=0, idle_seconds=0.2) as node:
        careless = await actors.connect("probe", "careless")
        await careless.call("leaveTraces", "secret")
        pid = await careless.call("pid")

        async def is_asleep() -> bool:
            return (await statistics(node))["sleeps"] >= 1

        await until(is_asleep)
        for number in range(3):
            traces = await (await actors.connect("probe", f"next {number}")).call("findTraces")
            assert (traces["secret"], traces["connection"]) == (None, 0)
            assert traces["tasks"] == [] or traces["pid"] != pid


async def test_with_recycle_1_every_wake_gets_a_fresh_process_and_handles_notice_nothing(
    local_ray: None, tmp_path: Path
) -> None:
    with serving(tmp_path, max_awake=1, spares=1, recycle=1, linger_seconds=0.0, quantum_seconds=0.0) as node:
        ann, bea = await actors.connect("probe", "ann"), await actors.connect("probe", "bea")
        pids = []
        for number in range(3):
            for chat in (ann, bea):
                assert await chat.call("increase") == number + 1
                pids.append(await chat.call("pid"))
        assert len(set(pids)) == len(pids)
        assert (await statistics(node))["wakes"] >= 6


async def test_a_handle_finds_the_gateway_that_took_the_place_of_a_dead_one(local_ray: None, tmp_path: Path) -> None:
    import ray

    with serving(tmp_path) as node:
        chat = await actors.connect("probe", "hal")
        await chat.append_message(message("m1"))
        ray.kill(node.gateway)
        await asyncio.wait_for(chat.append_message(message("m2")), 40)
        assert [m["id"] for m in await chat.get_history()] == ["m1", "m2"]


def warm_files(folder: Path) -> list[Path]:
    return list(folder.rglob("warm.sqlite*"))


async def test_local_files_of_sleeping_conversations_are_kept_within_their_limit(
    local_ray: None, tmp_path: Path
) -> None:
    with serving(tmp_path) as node:
        async with Client(node.url, "conversation", "ann") as chat:
            await chat.append_message(message("m1"))
    assert warm_files(tmp_path)

    async def is_swept() -> bool:
        return not warm_files(tmp_path)

    with serving(tmp_path, max_warm_bytes=0) as node:
        await until(is_swept)
        async with Client(node.url, "conversation", "ann") as chat:
            assert [entry["id"] for entry in await chat.get_history()] == ["m1"]
