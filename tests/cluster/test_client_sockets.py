"""`Client` against a gateway with conversations in memory: lost sockets, restarts, errors, TLS, tokens."""

import asyncio
import itertools
import logging
import random
import ssl
import subprocess

import pytest
from gateway_fakes import AGENTS, FakeKeeper, running_gateway
from websockets.asyncio.server import serve

from actors.client import Client
from actors.conversation.events import Close, Connect, Failure, Rpc
from actors.errors import CallFailed, ConnectionLost, UnknownAgent, UnknownMethod
from actors.gateway.server import Gateway
from actors.gateway.socket import Socket, Timing
from actors.settings import Settings
from storage.errors import InvalidArgument, LimitExceeded, OutcomeUnknown


def message(id: str) -> dict:
    return {"id": id, "role": "user", "parts": [{"type": "text", "text": id}]}


def sockets_of(gateway: Gateway) -> list[Socket]:
    return list(gateway._sockets.values())


def cut(gateway: Gateway) -> None:
    """Break every socket without a word."""
    for socket in sockets_of(gateway):
        socket.wire.transport.abort()


async def until(is_so) -> None:
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.005)


async def test_the_session_methods_work_over_a_socket():
    async with running_gateway() as (_, _, url), Client(url, "conversation", "alice") as chat:
        await chat.append_message(message("m1"))
        await chat.append_message(message("m2"), "m1")
        await chat.append_message(message("root"), None)
        assert [m["id"] for m in await chat.get_history("m2")] == ["m1", "m2"]
        assert [m["id"] for m in await chat.get_history()] == ["root"]
        assert (await chat.get_latest_leaf())["id"] == "root"
        assert await chat.call("add", 2, 3) == 5
        assert await chat.call("nothing") is None
        assert (await chat.compact())["summary"] == "SUMMARY"


async def test_typed_errors_arrive_as_themselves():
    async with running_gateway() as (_, _, url), Client(url, "conversation", "alice") as chat:
        with pytest.raises(UnknownMethod) as unknown:
            await chat.call("nope")
        assert unknown.value.args == ("nope",)
        with pytest.raises(CallFailed, match="broken pipe"):
            await chat.call("fail", "broken pipe")


async def test_a_stream_is_read_chunk_by_chunk():
    async with running_gateway() as (_, _, url), Client(url, "conversation", "alice") as chat:
        stream = chat.stream("streamOk", 3)
        assert [chunk async for chunk in stream] == [{"i": 0}, {"i": 1}, {"i": 2}]
        assert stream.result == {"total": 3}


async def test_status_and_state_of_another_client_are_seen():
    async with (
        running_gateway() as (_, _, url),
        Client(url, "state-agent", "alice") as watcher,
        Client(url, "state-agent", "alice") as chat,
    ):
        await until(lambda: watcher.state == {"count": 0})
        statuses = watcher.status()
        waiting = asyncio.ensure_future(anext(statuses))
        await chat.append_message(message("m1"))
        status = await waiting
        assert (status.phase, status.token_threshold, status.epoch, status.seq) == ("idle", None, 1, 1)
        assert status.token_estimate > 0
        chat.set_state({"count": 9})
        await until(lambda: watcher.state == {"count": 9})
        await statuses.aclose()


@pytest.mark.parametrize("seed", range(3))
async def test_no_append_is_lost_or_doubled_when_sockets_break_all_the_time(seed):
    """A fifth of the calls finds its socket broken before it runs, another fifth before it is answered."""
    chance = random.Random(seed)
    nobody = Failure(0, b'""', "", "", was_executed=False)
    async with running_gateway() as (gateway, keeper, url):

        def breaks(command):
            fate = chance.random() if isinstance(command, Rpc) else 1.0
            if fate < 0.4:
                gateway._sockets[command.connection].wire.transport.abort()
            return nobody if fate < 0.2 else None

        keeper.refuse = breaks

        async def write(who: int) -> None:
            async with Client(url, "conversation", "alice") as chat:
                for number in range(10):
                    await chat.append_message(message(f"{who}-{number}"))

        async with asyncio.timeout(60):
            await asyncio.gather(*(write(who) for who in range(4)))
        assert len(keeper.commands(Connect)) > 10
        stored = list(keeper.conversation("conversation", "alice").messages)
        assert sorted(stored) == sorted(f"{who}-{number}" for who in range(4) for number in range(10))
        for who in range(4):
            assert [id for id in stored if id.startswith(f"{who}-")] == [f"{who}-{n}" for n in range(10)]


async def test_a_restarted_server_is_found_again_and_buffered_calls_go_on_in_order():
    keeper = FakeKeeper()
    async with running_gateway(keeper) as (_, _, url):
        chat = Client(url, "conversation", "alice")
        await chat.__aenter__()
        await chat.append_message(message("m0"))
    waiting = [asyncio.create_task(chat.append_message(message(f"m{n}"))) for n in range(1, 6)]
    await until(lambda: len(chat._calls._ready) == 5)
    async with running_gateway(keeper, port=int(url.rsplit(":", 1)[1])):
        await asyncio.gather(*waiting)
        assert [m["id"] for m in await chat.get_history()] == [f"m{n}" for n in range(6)]
        assert chat.connections == 2
        await chat.close()


async def test_the_same_client_id_is_used_for_every_socket():
    async with running_gateway() as (gateway, keeper, url), Client(url, "conversation", "alice") as chat:
        await chat.get_history()
        cut(gateway)
        await chat.get_history()
        assert len({command.client_id for command in keeper.commands(Connect)}) == 1


async def test_a_call_in_flight_on_a_lost_socket_is_unknown_unless_it_is_idempotent():
    async with running_gateway() as (gateway, keeper, url), Client(url, "conversation", "alice") as chat:
        calls = [
            asyncio.create_task(chat.call("block", "gate")),
            asyncio.create_task(chat.call("block", "gate", is_idempotent=True)),
        ]
        await keeper.until(lambda: len(keeper.commands(Rpc)) == 2)
        cut(gateway)
        with pytest.raises(OutcomeUnknown):
            await calls[0]
        keeper.gates["gate"].set()
        assert await calls[1] == "gate"


async def test_a_busy_server_is_asked_again():
    async with running_gateway() as (_, keeper, url), Client(url, "conversation", "alice") as chat:
        attempts = itertools.count()
        text = "Too busy to take this call now; nothing was done, repeat it in a moment."

        def refuse(command):
            if isinstance(command, Rpc) and next(attempts) < 3:
                return Failure(command.connection, b'"1"', text, "busy", was_executed=False)
            return None

        keeper.refuse = refuse
        assert await chat.call("add", 1, 1) == 2


async def test_a_call_takes_no_longer_than_it_may():
    async with running_gateway() as (_, _, url), Client(url, "conversation", "alice") as chat:
        with pytest.raises(TimeoutError, match=r"block gave no answer within 0\.05 s"):
            await chat.call("block", timeout=0.05)
        assert await chat.call("add", 1, 1) == 2


async def test_a_message_that_the_server_does_not_take_is_refused_and_the_client_lives():
    async with (
        running_gateway(max_message_bytes=10_000) as (_, _, url),
        Client(url, "conversation", "alice") as chat,
    ):
        with pytest.raises(LimitExceeded):
            await chat.append_message(message("x" * 200_000))
        await chat.append_message(message("m1"))


@pytest.mark.parametrize("code", [4001, 4004, 1008])
async def test_a_terminal_close_ends_the_client(code):
    async with running_gateway() as (gateway, keeper, url), Client(url, "conversation", "alice") as chat:
        call = asyncio.create_task(chat.call("block", "gate"))
        await keeper.until(lambda: bool(keeper.commands(Rpc)))
        gateway.event(Close(sockets_of(gateway)[0].number, code, "go away"))
        with pytest.raises(ConnectionLost, match=f"{code} go away"):
            await call
        with pytest.raises(ConnectionLost):
            await chat.get_history()


async def test_a_server_that_is_not_there_is_one_clear_sentence():
    async with running_gateway() as (_, _, url):
        pass
    with pytest.raises(ConnectionLost, match=r"ws://127.*connection refused within 0\.1 s"):
        await Client(url, "conversation", "alice", open_seconds=0.1).__aenter__()


async def test_a_client_that_is_not_entered_goes_on_with_nothing():
    async with running_gateway() as (_, _, url):
        pass
    others = asyncio.all_tasks()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), Client(url, "conversation", "alice"):
            pass
    entering = asyncio.create_task(Client(url, "conversation", "alice").__aenter__())
    await asyncio.sleep(0)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert asyncio.all_tasks() == others


async def test_a_client_that_was_never_entered_says_so_at_once():
    chat = Client("ws://127.0.0.1:9", "conversation", "alice")
    told = r"Enter the client first: `async with Client"
    async with asyncio.timeout(1):
        with pytest.raises(InvalidArgument, match=told):
            await chat.get_history()
        with pytest.raises(InvalidArgument, match=told):
            chat.stream("count")
        with pytest.raises(InvalidArgument, match=told):
            chat.set_state(1)
        with pytest.raises(InvalidArgument, match=told):
            await anext(chat.status())
        await chat.close()
        with pytest.raises(ConnectionLost, match="this client was closed"):
            await chat.get_history()


async def test_following_the_status_ends_with_the_client():
    async with running_gateway() as (_, _, url):
        seen = []

        async def follow(chat: Client) -> None:
            async for status in chat.status():
                seen.append(status.phase)

        async with Client(url, "conversation", "alice") as chat:
            following = asyncio.create_task(follow(chat))
            await chat.append_message(message("m1"))
            await until(lambda: seen)
        async with asyncio.timeout(5):
            await following
        await follow(chat)  # what was seen last, and the end
        assert seen == ["idle", "idle"]


async def test_a_server_that_starts_late_is_waited_for():
    async with running_gateway() as (_, _, url):
        pass
    chat = Client(url, "conversation", "alice")
    entering = asyncio.create_task(chat.__aenter__())
    await until(lambda: chat._problem == "connection refused")
    async with running_gateway(port=int(url.rsplit(":", 1)[1])):
        await entering
        assert await chat.call("add", 1, 1) == 2
        await chat.close()


async def test_an_unknown_agent_is_an_error_at_once():
    async with running_gateway() as (_, _, url):
        with pytest.raises(UnknownAgent) as caught:
            await Client(url, "nope", "alice").__aenter__()
    served = ", ".join(AGENTS)
    assert "conversation" in AGENTS
    assert str(caught.value) == f"No agent named 'nope' is served here; there are: {served}."


@pytest.mark.parametrize("url", ["", "ftp://x", "ws://", "http:///x"])
async def test_what_is_no_url_of_a_server_is_refused(url):
    with pytest.raises(InvalidArgument):
        Client(url, "conversation", "alice")


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("alice", "alice"),
        ("a b/c?d#e", "a%20b%2Fc%3Fd%23e"),
        ("a%20b", "a%20b"),
        ("日本", "%E6%97%A5%E6%9C%AC"),
        ("x'(~", "x'(~"),
    ],
)
async def test_a_name_reaches_the_conversation_that_javascript_clients_reach(name, raw):
    async with running_gateway() as (_, keeper, url), Client(url, "conversation", name) as chat:
        await chat.get_history()
        assert keeper.submitted[0][0].name == raw


async def test_a_token_is_sent_but_never_shown(caplog):
    with caplog.at_level(logging.DEBUG):
        async with running_gateway() as (gateway, keeper, url):
            async with Client(url, "conversation", "alice", token="canary/17+x") as chat:
                await chat.get_history()
                request = sockets_of(gateway)[0].wire.request
                assert request.path.endswith("&token=canary%2F17%2Bx")
                assert "canary" not in repr(chat)
            assert "canary" not in str(keeper.submitted)
            with pytest.raises(UnknownAgent) as raised:
                await Client(url, "nope", "alice", token="canary").__aenter__()
            assert "canary" not in str(raised.value)
    assert "GET /agents/conversation/alice" in caplog.text
    assert "canary" not in caplog.text


async def test_a_stream_that_loses_its_socket_says_so():
    async with running_gateway() as (gateway, keeper, url), Client(url, "conversation", "alice") as chat:
        stream = chat.stream("block", "gate")

        async def read() -> None:
            async for _ in stream:
                pass

        reading = asyncio.create_task(read())
        await keeper.until(lambda: bool(keeper.commands(Rpc)))
        cut(gateway)
        with pytest.raises(OutcomeUnknown):
            await reading


async def test_two_clients_of_a_restarted_server_do_not_come_back_at_the_same_moment():
    keeper = FakeKeeper()
    async with running_gateway(keeper) as (_, _, url):
        chats = [Client(url, "conversation", f"c{n}") for n in range(20)]
        for chat in chats:
            await chat.__aenter__()
    before = len(keeper.commands(Connect))
    async with running_gateway(keeper, port=int(url.rsplit(":", 1)[1])):
        await until(lambda: len(keeper.commands(Connect)) == before + 20)
        for chat in chats:
            await chat.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    options = "-x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost"
    subprocess.run(
        ["openssl", "req", *options.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    return server, ssl.create_default_context(cafile=cert)


async def test_tls_works_and_an_untrusted_certificate_ends_the_client_at_once(certificate):
    server, client = certificate
    keeper = FakeKeeper()
    gateway = Gateway(keeper, keeper.agents, Settings(), timing=Timing(close_seconds=0.5))
    port = await gateway.start("127.0.0.1", 0, server)
    url = f"wss://127.0.0.1:{port}"
    async with Client(url, "conversation", "alice", ssl=client) as chat:
        assert len(await chat.call("payload", 2_000_000)) == 2_000_000
    with pytest.raises(ConnectionLost, match="certificate"):
        await Client(url, "conversation", "alice").__aenter__()
    await gateway.close()


async def test_frames_that_are_no_protocol_are_ignored():
    async def handler(wire) -> None:
        for frame in ("not json", "[]", '{"type":"rpc","id":7}', '{"type":"x"}', b"\x00", '{"type":"rpc","id":"99"}'):
            await wire.send(frame)
        async for _ in wire:
            await wire.send('{"type":"rpc","id":"1","success":true,"done":true,"result":1}')

    async with serve(handler, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with Client(f"ws://127.0.0.1:{port}", "conversation", "alice") as chat:
            assert await chat.call("x") == 1
