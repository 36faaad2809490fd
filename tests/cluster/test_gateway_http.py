"""Plain HTTP on the gateway's port, and where it listens."""

import json

import pytest
from gateway_clients import answer, call, get, http, joined
from gateway_fakes import AGENTS, FakeKeeper, running_gateway

from actors.cluster.errors import CannotStart
from actors.conversation.events import Close, Connect, Disconnect, Failure, Rpc
from actors.errors import Busy, CallFailed, UnknownMethod
from actors.gateway.server import Gateway
from actors.gateway.socket import Timing
from actors.settings import Settings
from storage.errors import CorruptRecord, OutcomeUnknown, StoreUnavailable


def status(response: str) -> int:
    return int(response.split(" ", 2)[1])


def body(response: str) -> str:
    return response.partition("\r\n\r\n")[2]


async def test_the_first_page_says_what_this_is_and_what_to_try():
    async with running_gateway() as (_, _, url):
        response = await get(url, "/")
        assert status(response) == 200
        assert "perdure demo" in response
        assert url in response
        assert "text/plain" in response


async def test_health_is_of_the_process_and_readiness_of_what_serves_conversations():
    async def fails() -> None:
        raise RuntimeError("secret detail")

    keeper = FakeKeeper()
    gateway = Gateway(keeper, AGENTS, Settings(), probe=fails)
    url = f"ws://127.0.0.1:{await gateway.start('127.0.0.1', 0)}"
    assert status(await get(url, "/healthz")) == 200
    response = await get(url, "/readyz")
    assert status(response) == 503
    assert "secret" not in response
    await gateway.close()
    async with running_gateway() as (_, _, url):
        assert status(await get(url, "/readyz")) == 200


async def test_messages_of_a_conversation_are_a_json_array():
    async with running_gateway() as (_, keeper, url):
        socket = await joined(url, "/agents/conversation/alice")
        await call(socket, "appendMessage", {"id": "m1", "role": "user", "parts": []})
        await answer(socket)
        response = await get(url, "/agents/conversation/alice/get-messages?_pk=1&token=canary")
        assert status(response) == 200
        assert json.loads(body(response)) == [{"id": "m1", "role": "user", "parts": []}]
        asked = keeper.submitted[-3:]
        assert [type(command) for _, command in asked] == [Connect, Rpc, Disconnect]
        assert "canary" not in str(keeper.submitted)


async def test_messages_that_take_too_long_are_not_available():
    async with running_gateway(timing=Timing(answer_seconds=0.05)) as (_, keeper, url):
        keeper.hold()
        assert status(await get(url, "/agents/conversation/alice/get-messages")) == 503
        assert [type(command) for _, command in keeper.submitted] == [Connect, Rpc, Disconnect]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (UnknownMethod("getMessages"), 404),
        (Busy(), 503),
        (StoreUnavailable("it is away"), 503),
        (CallFailed("no such parcel"), 500),
        (CallFailed(str(Busy())), 500),
        (CorruptRecord("log/3", "its hash is wrong"), 500),
    ],
)
@pytest.mark.parametrize("is_lost", [False, True])
async def test_messages_that_cannot_be_read_say_why(error, expected, is_lost):
    async with running_gateway() as (gateway, keeper, url):

        def refuse(command):
            if isinstance(command, Connect) and is_lost:
                gateway.lost(command.connection, 1011, error.code)
            if isinstance(command, Rpc):
                return Failure(command.connection, b'""', str(error), error.code, was_executed=not is_lost)
            return None

        keeper.refuse = refuse
        response = await get(url, "/agents/conversation/alice/get-messages")
        assert (status(response), body(response)) == (expected, str(error))


@pytest.mark.parametrize(("code", "expected"), [(1013, 503), (1011, 500), (4001, 404), (1008, 404)])
async def test_an_agent_that_closes_the_connection_is_no_busy_server(code, expected):
    async with running_gateway() as (_, keeper, url):
        keeper.refuse = lambda command: Close(command.connection, code, "go away")
        assert status(await get(url, "/agents/conversation/alice/get-messages")) == expected


async def test_messages_of_a_process_that_died_may_be_asked_for_again():
    async with running_gateway() as (_, keeper, url):
        keeper.refuse = lambda command: Failure(command.connection, b'""', "?", OutcomeUnknown.code, was_executed=True)
        assert status(await get(url, "/agents/conversation/alice/get-messages")) == 503


@pytest.mark.parametrize(
    ("path", "expected", "text"),
    [
        ("/agents/conversation/alice", 404, "Not implemented"),
        ("/agents/conversation/alice/other?x=1", 404, "Not implemented"),
        ("/agents/nope/alice", 400, "Invalid request"),
        ("/agents/conversation", 404, "Not found"),
        ("/favicon.ico", 404, "Not found"),
        ("/metrics", 404, "Not found"),
        ("/agents/conversation/x/sub/child/y", 404, "Sub-agents are not served here"),
        ("/agents/conversation/" + "x" * 600, 404, "This conversation name is too long"),
    ],
)
async def test_other_paths(path, expected, text):
    async with running_gateway() as (_, _, url):
        response = await get(url, path)
        assert (status(response), body(response)) == (expected, text)


async def test_post_without_a_body_is_not_implemented():
    async with running_gateway() as (_, _, url):
        response = await get(url, "/agents/conversation/alice", method="POST")
        assert (status(response), body(response)) == (404, "Not implemented")


async def test_head_has_no_body():
    async with running_gateway() as (_, _, url):
        response = await get(url, "/healthz", method="HEAD")
        assert (status(response), body(response)) == (200, "")


async def test_origin_and_host_are_checked_for_pages_too():
    async with running_gateway(allow_origin=("https://app.example.com",)) as (_, _, url):
        assert status(await get(url, "/healthz", "Origin: http://evil.example")) == 403
        assert status(await http(url, "GET / HTTP/1.1\nHost: evil.example\n\n")) == 403
        assert status(await http(url, "GET / HTTP/1.1\n\n")) == 403
        assert status(await get(url, "/", f"Host: {url[5:]}")) == 403
        response = await get(url, "/healthz", "Origin: https://app.example.com")
        assert status(response) == 200
        assert "Access-Control-Allow-Origin: https://app.example.com" in response
        assert status(await get(url, "/x", "Origin: https://app.example.com", method="OPTIONS")) == 200
        assert "Access-Control" not in await get(url, "/healthz")


async def test_too_many_or_too_long_headers_are_refused():
    async with running_gateway() as (_, _, url):
        assert status(await get(url, "/", *[f"X-{n}: 1" for n in range(200)])) == 431
        assert status(await get(url, "/", "X: " + "y" * 9000)) == 431
        assert status(await get(url, "/" + "y" * 9000)) == 414


async def test_a_request_that_never_comes_is_given_up():
    async with running_gateway(timing=Timing(open_seconds=0.05)) as (_, _, url):
        assert await http(url, "GET / HTTP/1.1\nHost: ") == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "192.0.2.1"])
async def test_without_credentials_only_loopback_is_served(host):
    with pytest.raises(CannotStart, match=r"^Without credentials only a loopback address"):
        await Gateway(FakeKeeper(), AGENTS, Settings()).start(host, 0)


async def test_a_port_in_use_is_one_clear_sentence():
    async with running_gateway() as (_, _, url):
        port = int(url.rsplit(":", 1)[1])
        with pytest.raises(CannotStart, match=rf"Port {port} on 127\.0\.0\.1 is in use"):
            await Gateway(FakeKeeper(), AGENTS, Settings()).start("127.0.0.1", port)
