"""What a client does with its calls, without a socket."""

import asyncio
import json
from typing import Any

import pytest

import actors.errors
import storage.errors
from actors.calling import Call, Calls, Stream
from actors.errors import Busy, CallFailed, ConnectionLost, Draining, UnknownMethod
from actors.rpc import rpc_methods
from actors.session_calls import SessionCalls
from actors.session_methods import SessionMethods
from actors.wire_errors import error_from
from storage.errors import (
    InvalidArgument,
    InvalidMessage,
    LimitExceeded,
    OutcomeUnknown,
    StorageError,
    StoreUnavailable,
    UnknownParent,
)


class Wire:
    """The other end of `Calls`: takes frames, sends answers."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.running: list[asyncio.Task[Any]] = []

    async def make(self, method: str, *args: Any, is_idempotent: bool = False, seconds: float = 5) -> asyncio.Task[Any]:
        call = Call(method, list(args), is_idempotent=is_idempotent)
        task = asyncio.create_task(self.calls.run(call, seconds))
        await asyncio.sleep(0)
        return task

    async def sent(self) -> dict[str, Any]:
        async with asyncio.timeout(5):
            frame: dict[str, Any] = json.loads(await self.calls.next_frame())
            return frame

    def result(self, id: str, value: Any, done: bool = True) -> None:
        self.calls.receive({"type": "rpc", "id": id, "success": True, "done": done, "result": value})

    def failure(self, id: str, error: StorageError | str) -> None:
        self.calls.receive({"type": "rpc", "id": id, "success": False, "error": str(error)})

    def lose(self, *, is_too_big: bool = False) -> None:
        self.calls.lost(is_too_big=is_too_big)


async def test_calls_are_sent_in_order_and_answers_find_their_calls():
    wire = Wire()
    first, second = await wire.make("a", 1), await wire.make("b")
    frames = [await wire.sent(), await wire.sent()]
    assert [(frame["method"], frame["args"]) for frame in frames] == [("a", [1]), ("b", [])]
    wire.result(frames[1]["id"], "two")
    wire.result(frames[0]["id"], "one")
    assert [await first, await second] == ["one", "two"]


async def test_a_sent_idempotent_call_is_sent_again_before_the_others_after_a_lost_socket():
    wire = Wire()
    tasks = [await wire.make("appendMessage", n, is_idempotent=True) for n in range(3)]
    before = [await wire.sent(), await wire.sent()]
    wire.lose()
    after = [await wire.sent() for _ in range(3)]
    assert [frame["args"] for frame in after] == [[0], [1], [2]]
    assert after[:2] == before
    for frame in after:
        wire.result(frame["id"], None)
    assert await asyncio.gather(*tasks) == [None] * 3


async def test_a_sent_call_that_is_not_idempotent_is_never_sent_again_by_itself():
    wire = Wire()
    sent, waiting = await wire.make("compact"), await wire.make("compact")
    await wire.sent()
    wire.lose()
    with pytest.raises(OutcomeUnknown):
        await sent
    wire.result((await wire.sent())["id"], "done")
    assert await waiting == "done"


@pytest.mark.parametrize("error", [Busy(), Draining(), StoreUnavailable("no answer")])
async def test_what_was_certainly_not_executed_is_repeated_whatever_it_is(error):
    wire = Wire()
    task = await wire.make("compact")
    wire.failure((await wire.sent())["id"], error)
    wire.result((await wire.sent())["id"], "done")
    assert await task == "done"


async def test_an_unknown_outcome_is_repeated_for_idempotent_calls_only():
    wire = Wire()
    append, compact = await wire.make("appendMessage", is_idempotent=True), await wire.make("compact")
    wire.failure((await wire.sent())["id"], OutcomeUnknown())
    wire.failure((await wire.sent())["id"], OutcomeUnknown())
    with pytest.raises(OutcomeUnknown):
        await compact
    wire.result((await wire.sent())["id"], None)
    assert await append is None


async def test_a_refusal_is_raised_and_not_repeated():
    wire = Wire()
    task = await wire.make("appendMessage", is_idempotent=True)
    wire.failure((await wire.sent())["id"], UnknownParent("m'9"))
    with pytest.raises(UnknownParent) as raised:
        await task
    assert raised.value.args == ("m'9",)


async def test_a_repeated_call_ends_with_its_time():
    wire = Wire()
    task = await wire.make("getHistory", is_idempotent=True, seconds=0.05)
    wire.failure((await wire.sent())["id"], Busy())
    with pytest.raises(TimeoutError, match=r"^getHistory gave no answer within 0.05 s"):
        await task


async def test_a_timeout_says_whether_the_call_was_sent_and_its_late_answer_is_dropped():
    wire = Wire()
    with pytest.raises(TimeoutError, match="was not sent"):
        await wire.calls.run(Call("a", [], is_idempotent=False), 0.01)
    task = await wire.make("b", seconds=0.01)
    frame = await wire.sent()
    with pytest.raises(TimeoutError, match="may have been executed"):
        await task
    wire.result(frame["id"], 1)
    third = await wire.make("c")
    assert (await wire.sent())["method"] == "c"
    third.cancel()


async def test_the_largest_call_is_at_fault_when_a_message_was_too_big():
    wire = Wire()
    small = await wire.make("appendMessage", "x", is_idempotent=True)
    big = await wire.make("appendMessage", "x" * 1000, is_idempotent=True)
    await wire.sent()
    await wire.sent()
    wire.lose(is_too_big=True)
    with pytest.raises(LimitExceeded):
        await big
    wire.result((await wire.sent())["id"], None)
    assert await small is None


async def test_the_end_fails_what_waits_and_what_comes():
    wire = Wire()
    task = await wire.make("a")
    wire.calls.end(ConnectionLost("4001 unauthorized"))
    with pytest.raises(ConnectionLost, match="4001"):
        await task
    for use in (lambda: wire.calls.start(Call("b", [], is_idempotent=True)), lambda: wire.calls.set_state(1)):
        lengths = []
        for _ in range(3):
            with pytest.raises(ConnectionLost, match="4001") as caught:
                use()
            lengths.append(len(caught.traceback))
        assert len(set(lengths)) == 1, "an error keeps nothing of the callers before"


async def test_a_stream_gives_its_chunks_and_then_its_result():
    wire = Wire()
    stream = Stream(wire.calls, Call("chat", ["hi"], is_idempotent=False))

    async def serve() -> None:
        id = (await wire.sent())["id"]
        for n in range(3):
            wire.result(id, n, done=False)
        wire.result(id, "end")

    serving = asyncio.create_task(serve())
    assert [chunk async for chunk in stream] == [0, 1, 2]
    assert stream.result == "end"
    await serving


async def test_a_stream_that_lost_its_socket_raises_after_its_chunks():
    wire = Wire()
    stream = Stream(wire.calls, Call("chat", [], is_idempotent=False))

    async def serve() -> None:
        wire.result((await wire.sent())["id"], "chunk", done=False)
        wire.lose()

    serving = asyncio.create_task(serve())
    seen = []

    async def read() -> None:
        async for chunk in stream:
            seen.append(chunk)

    with pytest.raises(OutcomeUnknown):
        await read()
    assert seen == ["chunk"]
    await serving


async def test_a_busy_stream_is_repeated_but_not_after_a_chunk():
    wire = Wire()
    stream = Stream(wire.calls, Call("chat", [], is_idempotent=False))

    async def serve() -> None:
        wire.failure((await wire.sent())["id"], Busy())
        id = (await wire.sent())["id"]
        wire.result(id, 1, done=False)
        wire.failure(id, Busy())

    serving = asyncio.create_task(serve())
    seen = []

    async def read() -> None:
        async for chunk in stream:
            seen.append(chunk)

    with pytest.raises(Busy):
        await read()
    assert seen == [1]
    await serving


async def test_statuses_reach_every_subscriber_and_a_slow_one_keeps_the_newest():
    wire = Wire()
    frame = {"type": "cf_agent_session", "phase": "idle", "tokenEstimate": 1, "tokenThreshold": None}
    wire.calls.receive(frame)
    with wire.calls.subscribe() as queue:
        for n in range(1000):
            wire.calls.receive({**frame, "tokenEstimate": n, "compacted": {"tokensBefore": 7}, "epoch": 3, "seq": n})
        wire.calls.receive({"type": "cf_agent_session_error", "error": "no model"})
        seen = [await queue.get() for _ in range(256)]
        assert (seen[-1].phase, seen[-1].error, seen[-1].token_estimate) == ("error", "no model", 999)
        assert (seen[-2].token_estimate, seen[-2].tokens_before, seen[-2].epoch, seen[-2].seq) == (999, 7, 3, 999)


async def test_statuses_end_when_the_client_is_closed_and_raise_when_the_server_ends_it():
    frame = {"type": "cf_agent_session", "phase": "idle", "tokenEstimate": 1, "tokenThreshold": None}
    for is_wanted in (True, False):
        wire = Wire()
        with wire.calls.subscribe() as waiting, wire.calls.subscribe() as full:
            next_status = asyncio.create_task(waiting.get())
            await asyncio.sleep(0)
            wire.calls.receive(frame)
            assert (await next_status).token_estimate == 1
            end = asyncio.create_task(waiting.get())
            await asyncio.sleep(0)
            wire.calls.end(ConnectionLost("why"), is_wanted=is_wanted)
            assert (await full.get()).token_estimate == 1  # what was told before the end is seen
            with wire.calls.subscribe() as late:
                assert (await late.get()).token_estimate == 1
                ends = [end, full.get(), late.get()]
                for one in ends:
                    if is_wanted:
                        assert await one is None
                    else:
                        with pytest.raises(ConnectionLost, match="why"):
                            await one


async def test_the_state_is_the_one_seen_last():
    wire = Wire()
    wire.calls.receive({"type": "cf_agent_state", "state": {"n": 1}})
    assert wire.calls.state == {"n": 1}
    wire.calls.set_state({"n": 2})
    assert await wire.sent() == {"type": "cf_agent_state", "state": {"n": 2}}
    wire.calls.receive({"type": "cf_agent_state_error", "error": "Connection is readonly"})
    assert wire.calls.state_error == "Connection is readonly"


async def test_arguments_that_are_no_json_are_refused_before_anything_is_sent():
    wire = Wire()
    with pytest.raises(InvalidArgument):
        await wire.calls.run(Call("a", [object()], is_idempotent=False), 1)


FACTS = {"LimitExceeded": ("A message", 8), "BlockTooLarge": ("memory", 1200, 1100), "CorruptRecord": ("log/1", "bad")}


def _errors() -> list[type[StorageError]]:
    found = [*vars(storage.errors).values(), *vars(actors.errors).values()]
    return [error for error in found if isinstance(error, type) and issubclass(error, StorageError)]


@pytest.mark.parametrize("error", _errors(), ids=lambda error: error.__name__)
def test_a_typed_error_survives_the_wire(error):
    count = error.sentence.count("{")
    facts = FACTS.get(error.__name__, tuple(f"fact {n} 'quoted'" for n in range(count)))
    told = str(error(*facts))
    found = error_from(told)
    if error.sentence.replace("{0}", "").replace("{1}", "").strip():
        assert type(found).sentence == error.sentence
        assert str(found) == told
    else:
        assert isinstance(found, CallFailed)


def test_facts_come_back_as_they_were():
    assert error_from(str(UnknownMethod("nope"))).args == ("nope",)
    assert error_from(str(LimitExceeded("A message", 8))).args == ("A message", 8)
    assert error_from(str(InvalidMessage("it has no id"))).args == ("it has no id",)


@pytest.mark.parametrize("text", ["broken pipe", "", "Unknown error occurred", "None", "{0}"])
def test_any_other_text_is_an_error_of_the_agent(text):
    error = error_from(text)
    assert type(error) is CallFailed
    assert str(error) == text


@pytest.mark.parametrize("error", [Busy(), StoreUnavailable("away"), UnknownMethod("nope"), LimitExceeded("A", 8)])
@pytest.mark.parametrize("text", ["{0} The money was sent.", "{0}\n", "The money was sent. {0}", "RuntimeError: {0}"])
def test_a_text_that_only_holds_a_sentence_of_ours_is_an_error_of_the_agent(error, text):
    text = text.format(error)
    found = error_from(text)
    assert not found.is_retryable
    assert str(found) == text


async def test_a_call_that_failed_with_more_than_a_busy_sentence_is_not_sent_again():
    wire = Wire()
    waiting = await wire.make("spend")
    await wire.sent()
    wire.failure("1", f"{Busy()} The money was sent.")
    with pytest.raises(CallFailed, match="The money was sent"):
        await waiting


def test_the_client_has_every_method_that_agents_offer():
    assert not [m.attribute for m in rpc_methods(SessionMethods).values() if not hasattr(SessionCalls, m.attribute)]
