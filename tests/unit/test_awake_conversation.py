"""An awake conversation: admission, answers, state, hooks, hibernation. No Ray, no sockets."""

import asyncio
import json
import re

import pytest
from agents_for_tests import Probe
from awake import KEY, awake
from store_fakes import FaultyStore
from wire import message

from actors import Agent, Session, rpc
from actors.conversation.awake import AwakeConversation
from actors.conversation.events import (
    Close,
    Connected,
    Direct,
    Disconnect,
    Failure,
    Message,
    Push,
    Result,
    Returned,
    Rpc,
    Saved,
    SetState,
    StateRefused,
)
from actors.errors import Busy, NotMine
from actors.wire_errors import error_from
from storage.checkpoints import MemoryStore, abandon_conversation
from storage.errors import Fenced, InvalidArgument, InvalidMessage, UnknownMessage
from storage.replication import boottime


async def test_a_name_that_was_never_written_leaves_nothing_in_the_store(tmp_path):
    store = MemoryStore()
    async with awake(tmp_path, store=store) as hall:
        await hall.connect()
        assert await hall.call("getHistory") == []
        assert await hall.call("search", "x") == []
    assert list(store.list("")) == []


@pytest.mark.parametrize(
    ("returned", "kind"), [(lambda: "a text", "str"), (lambda: None, "NoneType"), (asyncio.sleep, "coroutine")]
)
async def test_a_configure_that_returns_something_else_is_told_at_the_wake(tmp_path, returned, kind):
    class Wrong(Probe):
        def configure(self):
            return returned(0) if returned is asyncio.sleep else returned()

    told = f"Wrong.configure must return a Session or a SessionManager, not {kind}."
    with pytest.raises(InvalidArgument, match=re.escape(told)):
        async with awake(tmp_path, Wrong):
            pass


def test_an_async_configure_is_refused_when_its_class_is_written():
    with pytest.raises(TypeError, match=r"Late\.configure must be a plain `def`: use `on_start`"):

        class Late(Probe):
            async def configure(self):
                return Session.create(self)

    class Mixin:
        async def configure(self):
            return None

    with pytest.raises(TypeError, match="plain `def`"):
        type("Mixed", (Mixin, Probe), {})


async def test_an_append_is_answered_after_its_idle_frame(tmp_path):
    async with awake(tmp_path) as hall:
        await hall.connect()
        hall.send("a", "appendMessage", message("m1"))
        await hall.answer("a")
        kinds = [type(event) for event in hall.events if not isinstance(event, Saved)]
        assert kinds == [Connected, Push, Result]
        frame = json.loads((await hall.until(Push)).frame)
        assert frame["type"] == "cf_agent_session"
        assert frame["phase"] == "idle"
        assert frame["tokenEstimate"] > 100
        assert (frame["seq"], frame["epoch"]) == (1, 1)


async def test_calls_of_one_connection_take_effect_in_the_order_sent_and_run_concurrently(tmp_path):
    gate = asyncio.Event()

    class Gated(Probe):
        @rpc
        async def hold(self) -> str:
            await gate.wait()
            return "released"

    async with awake(tmp_path, Gated) as hall:
        await hall.connect()
        hall.send("slow", "hold")
        for number in range(50):
            hall.send(f"a{number}", "appendMessage", message(f"m{number}"))
        await hall.answer("a49")
        assert not any(isinstance(event, Result) and event.call == b'"slow"' for event in hall.events)
        history = await hall.call("getHistory")
        assert [entry["id"] for entry in history] == [f"m{number}" for number in range(50)]
        estimates = [json.loads(event.frame)["tokenEstimate"] for event in hall.events if isinstance(event, Push)]
        assert estimates == sorted(estimates)
        assert len(estimates) == 50
        gate.set()
        await hall.answer("slow")


@pytest.mark.parametrize(
    ("method", "arguments", "code", "sentence"),
    [
        ("noSuchMethod", [], "unknown_method", "Method noSuchMethod does not exist"),
        ("configure", [], "method_not_callable", "Method configure is not callable"),
        ("database", [], "unknown_method", "Method database does not exist"),
        ("constructor", [], "unknown_method", "Method constructor does not exist"),
        ("__init__", [], "unknown_method", "Method __init__ does not exist"),
        ("appendMessage", [], "invalid_argument", "appendMessage needs the argument 'message'."),
        ("appendMessage", [{"role": "user", "parts": []}], "invalid_message", "not stored"),
        ("appendMessage", [{"id": "x", "parts": []}], "invalid_message", "not stored"),
        ("appendMessage", [{"id": "x", "role": "user"}], "invalid_message", "not stored"),
        ("appendMessage", [message("x"), "ghost"], "unknown_parent", "'ghost'"),
        ("appendMessage", [message("x"), 7], "invalid_argument", "parent_id must be a text"),
        ("updateMessage", [message("ghost")], "unknown_message", "'ghost'"),
        ("search", ["x", {"limit": -1}], "invalid_argument", "limit"),
        ("getHistory", [7], "invalid_argument", "leafId"),
        ("fail", ["it broke"], "call_failed", "it broke"),
        ("circle", [], "invalid_argument", "circle cannot be sent"),
        ("replaceContextBlock", ["nope", "x"], "unknown_block", "nope"),
    ],
)
async def test_every_kind_of_bad_call_gets_one_clear_sentence(tmp_path, method, arguments, code, sentence):
    async with awake(tmp_path) as hall:
        await hall.connect()
        await hall.call("appendMessage", message("m1"))
        hall.send("bad", method, *arguments)
        answer = await hall.answer("bad")
        assert isinstance(answer, Failure)
        assert answer.code == code
        assert sentence in answer.error
        assert "Traceback" not in answer.error
        assert [entry["id"] for entry in await hall.call("getHistory")] == ["m1"]


async def test_what_sqlite_says_is_not_told_to_clients(tmp_path):
    class Careless(Probe):
        @rpc
        async def look(self) -> None:
            await self.database.read(lambda connection: connection.execute("SELECT secret FROM hidden_table"))

    async with awake(tmp_path, Careless) as hall:
        await hall.connect()
        hall.send("look", "look")
        assert (await hall.answer("look")).error == "Internal error (OperationalError)"


async def test_a_stream_sends_its_chunks_in_order_and_ends_once(tmp_path):
    async with awake(tmp_path) as hall:
        await hall.connect()
        hall.send("s", "count", 3)
        await hall.answer("s")
        results = [event for event in hall.events if isinstance(event, Result)]
        assert [(event.result, event.is_done) for event in results] == [
            (b"0", False),
            (b"1", False),
            (b"2", False),
            (b'{"total":3}', True),
        ]


async def test_a_stream_that_its_method_forgets_to_end_is_ended(tmp_path):
    class Forgetful(Probe):
        @rpc(streaming=True)
        async def talk(self, stream):
            await stream.send("hello")

        @rpc(streaming=True)
        async def stumble(self, stream):
            await stream.send("hello")
            raise ValueError("lost the thread")

        @rpc(streaming=True)
        async def give_up(self, stream):
            await stream.error("no more")

    async with awake(tmp_path, Forgetful) as hall:
        await hall.connect()
        hall.send("talk", "talk")
        answer = await hall.answer("talk")
        assert isinstance(answer, Result)
        assert answer.result is None
        for method, text in (("stumble", "lost the thread"), ("giveUp", "no more")):
            hall.send(method, method)
            assert (await hall.answer(method)).error == text


async def test_a_call_longer_than_allowed_has_an_unknown_outcome(tmp_path):
    async with awake(tmp_path, call_seconds=0.05) as hall:
        await hall.connect()
        hall.send("w", "wait", 60)
        answer = await hall.answer("w")
        assert answer.code == "outcome_unknown"
        assert answer.was_executed


async def test_more_calls_than_the_limit_are_refused_and_harm_nobody(tmp_path):
    async with awake(tmp_path, max_queued_operations=4) as hall:
        await hall.connect()
        for number in range(4):
            hall.send(f"w{number}", "wait", 0.2)
        hall.send("extra", "getHistory")
        answer = await hall.answer("extra")
        assert answer.code == "busy"
        assert not answer.was_executed
        assert isinstance(await hall.answer("w3"), Result)


# ---- state -----------------------------------------------------------------------------------------------------


async def test_a_state_set_by_a_client_reaches_the_others_after_it_is_stored(tmp_path):
    store = MemoryStore()
    async with awake(tmp_path, store=store) as hall:
        assert (await hall.connect(1)).state == b'{"count":0}'
        hall.conversation.submit(SetState(1, b'{"type":"cf_agent_state","state":{"count":5}}'))
        push = await hall.until(Push)
        assert json.loads(push.frame) == {"type": "cf_agent_state", "state": {"count": 5}}
        assert push.besides == 1
        assert push.is_protocol
    async with awake(tmp_path, store=store) as hall:
        assert (await hall.connect(2)).state == b'{"count":5}'


async def test_a_state_set_by_a_method_reaches_the_caller_before_its_answer(tmp_path):
    async with awake(tmp_path) as hall:
        await hall.connect()
        assert await hall.call("increase") == 1
        kinds = [type(event) for event in hall.events if isinstance(event, Push | Result)]
        assert kinds == [Push, Result]
        assert (await hall.until(Push)).besides is None


async def test_null_is_a_state_and_a_state_that_was_never_set_is_none(tmp_path):
    class Stateless(Probe):
        initial_state = Agent.initial_state

    async with awake(tmp_path, Stateless) as hall:
        assert (await hall.connect(1)).state is None
        hall.conversation.submit(SetState(1, b'{"state":null}'))
        await hall.until(Push)
        assert (await hall.connect(2)).state == b"null"


async def test_a_read_only_connection_cannot_change_the_state_in_any_way(tmp_path):
    store = MemoryStore()
    async with awake(tmp_path, store=store) as hall:
        await hall.connect(is_readonly=True)
        saved = (await hall.until(Saved)).saved
        hall.conversation.submit(SetState(1, b'{"state":1}'))
        assert (await hall.until(StateRefused)).error == "Connection is readonly"
        hall.send("up", "increase")
        assert (await hall.answer("up")).error == "Connection is readonly"
        await hall.call("appendMessage", message("m1"))
    async with awake(tmp_path, store=store) as hall:  # the flag survives a sleep
        assert (await hall.connect(saved=saved)).is_readonly


async def test_a_state_that_is_nested_too_deeply_is_refused_in_words(tmp_path):
    async with awake(tmp_path) as hall:
        await hall.connect(1)
        for depth in (128, 129, 900):
            hall.conversation.submit(SetState(1, b'{"state":%b}' % (b"[" * depth + b"]" * depth)))
        refused = await hall.until(StateRefused)
        assert refused.error == "The nesting of a state is over the limit of 128 levels; nothing was stored."
        await hall.call("getPathLength")
        assert [event for event in hall.events if isinstance(event, StateRefused)] == [refused, refused]
        assert (await hall.connect(2)).state == b"[" * 128 + b"]" * 128


async def test_a_message_of_every_depth_that_is_stored_can_be_read(tmp_path):
    async with awake(tmp_path) as hall:
        await hall.connect(1)
        value: object = 2**70
        for _ in range(125):
            value = [value]
        await hall.call("appendMessage", {"id": "m", "role": "user", "parts": [{"data": value}]})
        assert (await hall.call("getMessage", "m"))["id"] == "m"
        assert len((await hall.call("getRecentHistory", 1_000_000))["messages"]) == 1
        assert len(await hall.call("getHistory")) == 1


async def test_a_state_that_the_agent_refuses_is_refused_without_its_reason(tmp_path):
    class Strict(Probe):
        def validate_state(self, value, connection):
            if value == "bad":
                raise ValueError("an internal reason")

    async with awake(tmp_path, Strict) as hall:
        await hall.connect()
        hall.conversation.submit(SetState(1, b'{"state":"bad"}'))
        assert (await hall.until(StateRefused)).error == "State update rejected"
        assert (await hall.connect(2)).state == b'{"count":0}'


# ---- verbs and connections -------------------------------------------------------------------------------------


async def test_a_call_needs_the_verb_of_its_method(tmp_path):
    async with awake(tmp_path) as hall:
        await hall.connect(verbs=("read", "append"))
        await hall.call("appendMessage", message("m1"))
        for call, arguments in (
            ("updateMessage", [message("m1")]),
            ("deleteMessages", [["m1"]]),
            ("increase", []),
            ("appendMessage", [message("s1", role="system")]),
        ):
            hall.send(call, call, *arguments)
        for call in ("updateMessage", "deleteMessages", "increase"):
            assert (await hall.answer(call)).code == "not_allowed"
        assert (await hall.answer("appendMessage")).code == "not_allowed"
        assert [entry["id"] for entry in await hall.call("getHistory")] == ["m1"]


async def test_a_call_of_a_connection_that_never_joined_is_not_executed(tmp_path):
    async with awake(tmp_path) as hall:
        await hall.connect(1)
        hall.send("stray", "appendMessage", message("m1"), connection=7)
        assert (await hall.answer("stray")).code == "connection_lost"
        assert await hall.call("getHistory") == []


async def test_a_call_that_was_accepted_runs_although_its_socket_has_gone(tmp_path):
    async with awake(tmp_path) as hall:
        await hall.connect(1)
        await hall.connect(2)
        hall.send("a", "appendMessage", message("m1"), connection=1)
        hall.conversation.submit(Disconnect(1))
        await hall.answer("a")
        assert [entry["id"] for entry in await hall.call("getHistory", connection=2)] == ["m1"]


async def test_hooks_see_connections_and_messages(tmp_path):
    class Hooked(Probe):
        async def on_connect(self, connection):
            connection.send(f"welcome {connection.id}")
            connection.state = {"seen": 0}

        async def on_message(self, connection, text):
            connection.state = {"seen": connection.state["seen"] + 1}
            connection.send(b"\x00" if text == b"\x01" else f"{text} {connection.state['seen']}")

        async def on_disconnect(self, connection):
            self.broadcast(f"{connection.id} left")

    async with awake(tmp_path, Hooked) as hall:
        await hall.connect()
        assert (await hall.until(Direct)).payload == b"welcome pk1"
        hall.conversation.submit(Message(1, b"hello", is_text=True))
        await hall.until(Direct, payload=b"hello 1")
        hall.conversation.submit(Message(1, b"\x01", is_text=False))
        await hall.until(Direct, payload=b"\x00", is_text=False)
        hall.conversation.submit(Disconnect(1))
        assert (await hall.until(Push)).frame == b"pk1 left"


async def test_a_connection_whose_set_up_raises_is_closed_with_1011_and_no_details(tmp_path):
    class Hostile(Probe):
        async def on_connect(self, connection):
            raise ValueError("a secret")

    async with awake(tmp_path, Hostile) as hall:
        await hall.connect()
        close = await hall.until(Close)
        assert (close.code, close.reason) == (1011, "internal error")


async def test_a_socket_that_was_joined_before_a_sleep_is_not_greeted_again(tmp_path):
    class Greeter(Probe):
        async def on_connect(self, connection):
            connection.state = "greeted"
            connection.send("welcome")

        @rpc(verb="read")
        async def my_state(self) -> str:
            return self.connections[0].state

    store = MemoryStore()
    async with awake(tmp_path, Greeter, store=store) as hall:
        await hall.connect()
        await hall.until(Direct)
        await hall.call("appendMessage", message("m1"))
        saved = [event for event in hall.events if isinstance(event, Saved)][-1].saved
    async with awake(tmp_path, Greeter, store=store) as hall:
        await hall.connect(saved=saved)
        assert await hall.call("myState") == "greeted"
        assert not any(isinstance(event, Direct) for event in hall.events)


# ---- hibernation -----------------------------------------------------------------------------------------------


async def test_what_is_submitted_while_it_goes_to_sleep_comes_back_unexecuted(tmp_path):
    store = MemoryStore()
    async with awake(tmp_path, store=store) as hall:
        await hall.connect()
        hall.send("w", "wait", 0.1)
        hall.send("a", "appendMessage", message("m1"))
        sleeping = asyncio.create_task(hall.conversation.hibernate())
        await asyncio.sleep(0)
        command = Rpc(1, b'{"type":"rpc","id":"late","method":"appendMessage","args":[]}', b'"late"')
        hall.conversation.submit(command)
        await sleeping
        assert isinstance(await hall.answer("w"), Result)
        assert isinstance(await hall.answer("a"), Result)
        assert (await hall.until(Returned)).command == command
        with pytest.raises(NotMine):
            await hall.conversation.call("getHistory", [])
    async with awake(tmp_path, store=store) as hall:
        await hall.connect()
        assert [entry["id"] for entry in await hall.call("getHistory")] == ["m1"]


async def test_a_call_that_outlasts_the_drain_has_an_unknown_outcome(tmp_path):
    async with awake(tmp_path) as hall:
        await hall.connect()
        hall.send("w", "wait", 60)
        await asyncio.sleep(0)
        await hall.conversation.hibernate(grace_seconds=0.05)
        assert (await hall.answer("w")).code == "outcome_unknown"


async def test_it_is_busy_while_a_call_runs(tmp_path):
    async with awake(tmp_path) as hall:
        await hall.connect()
        assert not hall.conversation.is_busy
        hall.send("w", "wait", 0.05)
        await asyncio.sleep(0)
        assert hall.conversation.is_busy
        await hall.answer("w")
        await asyncio.sleep(0)
        assert not hall.conversation.is_busy


# ---- taken over ------------------------------------------------------------------------------------------------


async def test_one_operation_of_a_conversation_that_was_taken_over_comes_back_and_a_longer_call_is_unknown(tmp_path):
    """B79, B80: the fenced writer executes nothing more and says so; only this conversation is affected."""

    class Composed(Probe):
        @rpc
        async def append_twice(self, first: dict, second: dict) -> None:
            await self.session.append_message(first)
            await self.session.append_message(second)

    store = MemoryStore()
    first_folder, second_folder = tmp_path / "first", tmp_path / "second"
    first_folder.mkdir()
    second_folder.mkdir()
    async with awake(first_folder, Composed, store=store) as old:
        await old.connect()
        await old.call("appendMessage", message("m1"))
        async with awake(second_folder, Composed, store=store) as new:
            await new.connect()
            await new.call("appendMessage", message("m2"))
            old.send("one", "appendMessage", message("m3"))
            old.send("two", "appendTwice", message("m4"), message("m5"))
            returned = await old.until(Returned)
            assert json.loads(returned.command.frame)["id"] == "one"
            assert (await old.answer("two")).code == "outcome_unknown"
            assert [type(error) for error in old.lost] == [Fenced]
            assert [entry["id"] for entry in await new.call("getHistory")] == ["m1", "m2"]
            assert new.conversation.epoch == 2


# ---- calls of handles ------------------------------------------------------------------------------------------


async def test_a_handle_gets_results_and_the_typed_errors_themselves(tmp_path):
    async with awake(tmp_path) as hall:
        conversation: AwakeConversation = hall.conversation
        assert await conversation.call("append_message", [message("m1")]) is None
        assert json.loads(await conversation.call("getLatestLeaf", []))["id"] == "m1"
        with pytest.raises(InvalidMessage):
            await conversation.call("appendMessage", [{"id": "x"}])
        with pytest.raises(UnknownMessage):
            await conversation.call("updateMessage", [message("ghost")])
        assert KEY == conversation.key


# ---- memory and storage ----------------------------------------------------------------------------------------


async def test_what_memory_holds_is_not_told_by_an_owner_with_a_successor(tmp_path):
    """Blocks, prompt and state are answered from memory; the proof of ownership covers them all the same."""
    store = MemoryStore()
    old_folder, new_folder = tmp_path / "old", tmp_path / "new"
    old_folder.mkdir()
    new_folder.mkdir()
    async with awake(old_folder, store=store) as old:
        await old.connect()
        await old.call("replaceContextBlock", "memory", "old")
        assert (await old.call("getContextBlock", "memory"))["content"] == "old"
        async with awake(new_folder, store=store) as new:
            await new.connect()
            await new.call("replaceContextBlock", "memory", "new")
            proof = old.conversation._opened.replica.proof
            proof._clock = lambda: boottime() + 2  # its proof is older than a second
            for number, method in enumerate(("getContextBlock", "getContextBlocks", "freezeSystemPrompt", "pid")):
                old.send(f"r{number}", method, *(["memory"] if number == 0 else []))
            for number in range(4):
                answer = await old.answer(f"r{number}")
                assert isinstance(answer, Failure), answer
            assert [type(error) for error in old.lost] == [Fenced]


async def test_calls_keep_their_order_while_their_socket_joins(tmp_path):
    class Slow(Probe):
        async def on_connect(self, connection):
            await asyncio.sleep(0.05)

    store = MemoryStore()
    async with awake(tmp_path, Slow, store=store) as hall:
        await hall.connect(9)
        await hall.call("appendMessage", message("m0"), connection=9)
        hall.conversation._opened.replica.proof._proved_at = float("-inf")  # the join has to ask for a proof
        joining = asyncio.create_task(hall.connect(1))
        await asyncio.sleep(0)
        hall.send("a1", "appendMessage", message("m1"))
        await joining
        hall.send("a2", "appendMessage", message("m2"))
        await hall.answer("a1")
        await hall.answer("a2")
        assert [entry["id"] for entry in await hall.call("getHistory")] == ["m0", "m1", "m2"]


async def test_after_an_outage_in_which_writes_were_given_up_the_conversation_begins_anew(tmp_path):
    store = FaultyStore()
    async with awake(tmp_path, store=store, store_deadline_seconds=0.1) as hall:
        await hall.connect()
        await hall.call("appendMessage", message("m1"))
        store.gate.clear()
        hall.send("up", "increase")
        assert (await hall.answer("up")).code == "outcome_unknown"
        store.gate.set()
        await hall.until_lost()
        command = Rpc(1, b'{"type":"rpc","id":"next","method":"increase","args":[]}', b'"next"')
        hall.conversation.submit(command)
        assert (await hall.until(Returned)).command == command
        await abandon_conversation(hall.conversation._opened)
    async with awake(tmp_path, store=store) as hall:
        assert (await hall.connect()).state == b'{"count":1}'


async def test_a_flood_of_messages_closes_its_socket_and_a_hook_ends_in_time(tmp_path):
    class Stuck(Probe):
        async def on_message(self, connection, message):
            await asyncio.Event().wait()

    async with awake(tmp_path, Stuck, max_queued_operations=3, call_seconds=0.2) as hall:
        await hall.connect(1)
        for _ in range(4):
            hall.conversation.submit(Message(1, b"x", is_text=True))
        assert (await hall.until(Close)).code == 1013
        assert hall.conversation.is_busy
        await asyncio.wait(hall.conversation._hooks, timeout=5)
        await asyncio.sleep(0)
        assert not hall.conversation.is_busy


async def test_a_refusal_by_somebody_else_does_not_make_a_call_look_unexecuted(tmp_path):
    class Caller(Probe):
        @rpc
        async def pay(self) -> None:
            raise Busy()  # of another conversation that it called, after it had charged

        @rpc
        async def imitate(self) -> None:
            raise RuntimeError(str(Busy()))

        @rpc
        async def quote(self) -> None:
            raise InvalidArgument(str(Busy()))

        @rpc(streaming=True)
        async def end_so(self, stream) -> None:
            await stream.error(str(Busy()))

        @rpc
        async def look_up(self) -> None:
            {}["nothing"]

    async with awake(tmp_path, Caller) as hall:
        await hall.connect()
        hall.send("pay", "pay")
        assert (await hall.answer("pay")).code == "outcome_unknown"
        for method in ("imitate", "quote", "endSo"):
            hall.send(method, method)
            answer = await hall.answer(method)
            assert answer.code in ("call_failed", "invalid_argument")
            assert not error_from(answer.error).is_retryable
        hall.send("lookUp", "lookUp")
        assert (await hall.answer("lookUp")).error == "KeyError: 'nothing'"


async def test_a_call_behind_a_state_update_builds_on_it(tmp_path):
    async with awake(tmp_path) as hall:
        await hall.connect()
        hall.conversation.submit(SetState(1, b'{"type":"cf_agent_state","state":{"count":10}}'))
        for number in range(10):
            hall.send(f"up{number}", "increase")
        counts = [json.loads((await hall.answer(f"up{number}")).result) for number in range(10)]
        assert counts == list(range(11, 21))
        states = [json.loads(event.frame)["state"]["count"] for event in hall.events if isinstance(event, Push)]
        assert states == list(range(10, 21))


async def test_a_state_that_is_not_confirmed_is_told_to_nobody(tmp_path):
    class Reader(Probe):
        @rpc(verb="read")
        async def look(self) -> int:
            return self.state["count"]

    store = FaultyStore()
    async with awake(tmp_path, Reader, store=store) as hall:
        await hall.connect()
        await hall.call("appendMessage", message("m1"))
        store.gate.clear()
        hall.send("up", "increase")
        hall.send("look", "look")
        await asyncio.to_thread(store.is_waiting.wait)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not any(isinstance(event, Result) and event.call == b'"look"' for event in hall.events)
        store.gate.set()
        assert (await hall.answer("look")).result == b"1"


async def test_a_call_that_only_the_gateway_could_read_is_answered(tmp_path):
    async with awake(tmp_path) as hall:
        await hall.connect()
        deep = b"[" * 5_000 + b"]" * 5_000
        hall.conversation.submit(Rpc(1, b'{"type":"rpc","id":"x","method":"getHistory","args":%b}' % deep, b'"x"'))
        answer = await hall.answer("x")
        assert (answer.error, answer.code) == (
            "The call was not executed: it is nested too deeply.",
            "invalid_argument",
        )
