"""One socket and its conversation: joining, calls, state, malformed input, closing."""

import asyncio
import json

import pytest
from gateway_clients import answer, call, closed, joined, open_socket, receive
from gateway_fakes import running_gateway
from websockets.exceptions import InvalidStatus

from actors.conversation.events import Close, Connect, Connected, Disconnect, Failure, Push, Rpc, SetState

FRAME = b'{"type":"x"}'


async def test_identity_is_sent_at_once_while_the_conversation_still_wakes():
    async with running_gateway() as (_, keeper, url):
        keeper.hold()
        socket = await open_socket(url)
        assert (await receive(socket))["type"] == "cf_agent_identity"
        keeper.release()
        assert (await receive(socket))["type"] == "cf_agent_mcp_servers"


async def test_a_broadcast_never_slips_in_before_the_state_of_a_joining_socket():
    async with running_gateway() as (gateway, keeper, url):
        keeper.hold()
        socket = await open_socket(url, "/agents/state-agent/alice")
        await keeper.until(lambda: bool(keeper.commands(Connect)))
        number = keeper.commands(Connect)[0].connection
        gateway.push([number], Push(FRAME, is_protocol=False, besides=None, phase=""))
        keeper.release()
        assert [(await receive(socket))["type"] for _ in range(3)] == [
            "cf_agent_identity",
            "cf_agent_state",
            "cf_agent_mcp_servers",
        ]
        gateway.push([number], Push(FRAME, is_protocol=False, besides=None, phase=""))
        assert (await receive(socket))["type"] == "x"


async def test_frames_of_a_client_that_does_not_wait_for_identity_are_served_in_order():
    async with running_gateway() as (_, keeper, url):
        keeper.hold()
        socket = await open_socket(url)
        for number in range(5):
            await call(socket, "appendMessage", {"id": f"m{number}"}, id=str(number))
        await keeper.until(lambda: len(keeper.commands(Rpc)) == 5)
        keeper.release()
        types = [(await receive(socket))["type"] for _ in range(2)]
        assert types == ["cf_agent_identity", "cf_agent_mcp_servers"]
        assert [(await answer(socket, str(number)))["success"] for number in range(5)] == [True] * 5
        assert list(keeper.conversation("conv-agent", "alice").messages) == [f"m{number}" for number in range(5)]


async def test_what_the_conversation_is_told_about_a_socket():
    async with running_gateway() as (_, keeper, url):
        await joined(url, "/agents/conv-agent/a%20b?_pk=me&token=canary&mode=x")
        key, connect = keeper.submitted[0]
        assert (key.agent, key.name) == ("conv-agent", "a%20b")
        assert connect.client_id == "me"
        assert connect.url == "/agents/conv-agent/a%20b?_pk=me&mode=x"
        assert connect.verbs == ("read", "append", "edit", "delete", "admin")


async def test_the_conversation_learns_once_that_a_socket_has_gone():
    async with running_gateway() as (_, keeper, url):
        socket = await joined(url)
        await socket.close()
        await keeper.until(lambda: bool(keeper.commands(Disconnect)))
        assert [type(command) for _, command in keeper.submitted] == [Connect, Disconnect]


async def test_a_second_join_after_a_wake_tells_the_client_nothing():
    async with running_gateway() as (gateway, keeper, url):
        socket = await joined(url, "/agents/state-agent/alice")
        number = keeper.commands(Connect)[0].connection
        gateway.event(Connected(number, b"1", is_readonly=False, sends_protocol=True))
        await call(socket, "count")
        assert (await receive(socket))["type"] == "rpc"


async def test_duplicate_call_ids_are_two_calls():
    async with running_gateway() as (_, _, url):
        socket = await joined(url)
        await call(socket, "add", 1, 2)
        await call(socket, "add", 3, 4)
        assert [(await receive(socket))["result"], (await receive(socket))["result"]] == [3, 7]


async def test_many_calls_in_flight_on_many_sockets_are_all_answered():
    async with running_gateway() as (_, _, url):
        sockets = [await joined(url, f"/agents/conv-agent/c{number}") for number in range(10)]

        async def work(socket) -> list:
            for number in range(200):
                await call(socket, "add", number, 1, id=str(number))
            return sorted([(await receive(socket))["result"] for _ in range(200)])

        assert await asyncio.gather(*map(work, sockets)) == [list(range(1, 201))] * 10


async def test_an_error_of_one_call_or_client_is_nobody_elses():
    async with running_gateway() as (_, keeper, url):
        first, second = await joined(url), await joined(url)
        await call(first, "block", "gate", id="long")
        await call(first, "fail", "boom", id="bad")
        await call(second, "add", 1, 1, id="good")
        assert (await receive(first)) == {"type": "rpc", "id": "bad", "success": False, "error": "boom"}
        assert (await receive(second))["result"] == 2
        keeper.gates["gate"].set()
        assert (await answer(first, "long"))["result"] == "gate"


async def test_a_readonly_socket_is_told_so_and_nobody_else_hears_of_it():
    async with running_gateway() as (_, _, url):
        viewer = await joined(url, "/agents/state-agent/alice?mode=view")
        other = await joined(url, "/agents/state-agent/alice")
        await viewer.send('{"type":"cf_agent_state","state":{"count":1}}')
        assert await receive(viewer) == {"type": "cf_agent_state_error", "error": "Connection is readonly"}
        await call(other, "count")
        assert (await receive(other))["result"] == 2


async def test_a_socket_without_protocol_frames_gets_everything_else():
    async with running_gateway() as (_, _, url):
        quiet = await open_socket(url, "/agents/state-agent/alice?proto=off")
        other = await joined(url, "/agents/state-agent/alice")
        await call(other, "bump")
        await answer(other)
        await call(other, "appendMessage", {"id": "m1"}, id="2")
        assert (await receive(quiet))["type"] == "cf_agent_session"


async def test_malformed_frames_reach_nobody_and_the_socket_lives():
    async with running_gateway() as (_, keeper, url):
        socket = await joined(url)
        for text in ("not json", "", "null", "[" * 50_000, '{"type":"rpc","id":7,"method":"add","args":[]}', "\u0000"):
            await socket.send(text)
        await socket.send(b"\x00\x01\xff")
        await call(socket, "add", 1, 1)
        assert (await receive(socket))["result"] == 2
        assert len(keeper.commands(Rpc)) == 1
        assert len(keeper.submitted) == 2


async def test_text_that_is_not_utf8_closes_with_1007():
    async with running_gateway() as (_, _, url):
        socket = await joined(url)
        await socket.send(b"\xff\xfe", text=True)
        assert (await closed(socket))[0] == 1007


async def test_a_close_is_answered_with_its_own_code_and_reason():
    async with running_gateway() as (_, _, url):
        socket = await joined(url)
        await socket.close(4123, "bye")
        assert (socket.close_code, socket.close_reason) == (4123, "bye")


async def test_the_agent_closes_a_socket_behind_what_it_sent_before():
    async with running_gateway() as (gateway, keeper, url):
        socket = await joined(url)
        number = keeper.commands(Connect)[0].connection
        gateway.event(Failure(number, b'"1"', "last words", "call_failed", was_executed=True))
        gateway.event(Close(number, 4001, "x" * 200))
        gateway.event(Failure(number, b'"2"', "too late", "call_failed", was_executed=True))
        assert (await receive(socket))["error"] == "last words"
        assert await closed(socket) == (4001, "x" * 123)


async def test_a_conversation_that_gets_no_room_to_wake_sends_its_clients_away_for_later():
    async with running_gateway() as (gateway, keeper, url):
        keeper.hold()
        socket = await open_socket(url)
        await keeper.until(lambda: bool(keeper.commands(Connect)))
        gateway.lost(keeper.commands(Connect)[0].connection, 1013, "busy")
        assert await closed(socket) == (1013, "busy")


async def test_events_for_a_socket_that_has_gone_do_no_harm():
    async with running_gateway() as (gateway, _, url):
        gateway.event(Connected(99, None, is_readonly=False, sends_protocol=True))
        gateway.push([99], Push(FRAME, is_protocol=False, besides=None, phase=""))
        gateway.lost(99, 1013, "")
        await joined(url)


async def test_a_socket_that_breaks_while_its_call_runs_harms_no_other():
    async with running_gateway() as (_, keeper, url):
        broken, other = await joined(url), await joined(url)
        await call(broken, "block", "gate")
        await keeper.until(lambda: len(keeper.commands(Rpc)) == 1)
        broken.transport.abort()
        await keeper.until(lambda: bool(keeper.commands(Disconnect)))
        keeper.gates["gate"].set()
        await call(other, "appendMessage", {"id": "m"})
        assert (await answer(other))["success"]


async def test_sub_agents_are_refused_in_a_way_that_stops_the_client():
    async with running_gateway() as (_, keeper, url):
        socket = await open_socket(url, "/agents/conv-agent/p1/sub/child-agent/kid")
        assert await closed(socket) == (4004, "Sub-agents are not served here")
        assert keeper.submitted == []


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [
        ("/agents/nope/x", 400, "Invalid request"),
        ("/agents/ConvAgent/x", 400, "Invalid request"),
        ("/other/x", 404, "Not found"),
        ("/agents/conv-agent", 404, "Not found"),
        ("/", 404, "Not found"),
        ("/healthz", 404, "Not found"),
    ],
)
async def test_other_paths_are_refused_before_the_upgrade(path, status, body):
    async with running_gateway() as (_, _, url):
        with pytest.raises(InvalidStatus) as refused:
            await open_socket(url, path)
        assert (refused.value.response.status_code, refused.value.response.body.decode()) == (status, body)


async def test_empty_segments_lead_to_the_same_conversation():
    async with running_gateway() as (_, _, url):
        socket = await open_socket(url, "//agents//conv-agent//alice/")
        assert (await receive(socket))["name"] == "alice"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://app.example.com.evil"])
async def test_a_foreign_origin_is_refused_before_the_upgrade(origin):
    async with running_gateway(allow_origin=("https://app.example.com",)) as (_, keeper, url):
        with pytest.raises(InvalidStatus) as refused:
            await open_socket(url, origin=origin)
        assert refused.value.response.status_code == 403
        assert keeper.submitted == []


async def test_the_own_and_the_listed_origin_are_accepted():
    async with running_gateway(allow_origin=("https://app.example.com",)) as (_, _, url):
        await joined(url, origin="https://app.example.com")
        await joined(url, origin=url.replace("ws://", "http://"))


async def test_a_host_that_is_no_loopback_name_is_refused():
    async with running_gateway() as (_, _, url):
        port = url.rsplit(":", 1)[1]
        with pytest.raises(InvalidStatus) as refused:
            await open_socket(f"ws://rebound.example:{port}", host="127.0.0.1")
        assert refused.value.response.status_code == 403


async def test_a_twin_with_the_same_pk_is_excluded_by_socket_not_by_id():
    async with running_gateway() as (_, keeper, url):
        first = await joined(url, "/agents/state-agent/alice?_pk=same")
        twin = await joined(url, "/agents/state-agent/alice?_pk=same")
        await first.send('{"type":"cf_agent_state","state":{"count":5}}')
        assert (await receive(twin))["state"] == {"count": 5}
        await call(first, "count")
        assert (await receive(first))["result"] == 2
        assert json.loads(keeper.commands(SetState)[0].frame)["state"] == {"count": 5}


async def test_compression_is_never_negotiated():
    async with running_gateway() as (_, _, url):
        socket = await open_socket(url)
        assert "Sec-WebSocket-Extensions" not in socket.response.headers
