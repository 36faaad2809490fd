"""The recorded conversations of the reference server, replayed against the gateway with conversations in memory."""

import pytest
from gateway_fakes import running_gateway
from gateway_transcripts import Replay, load

REPLAYED = [
    "connect_raw",
    "connect_sdk",
    "connect_with_state",
    "connect_no_identity",
    "connect_no_protocol",
    "connection_attributes",
    "close_without_code",
    "state_set_by_client_two_clients",
    "state_set_by_server_two_clients",
    "state_error",
    "rpc_ok",
    "rpc_concurrent",
    "rpc_stream_ok",
    "rpc_stream_error",
    "rpc_stream_sdk",
    "malformed",
    "custom_messages_binary",
    "message_hook_throws",
    "reconnect_sdk",
]


@pytest.mark.parametrize("name", REPLAYED)
async def test_a_transcript_is_reproduced(name):
    async with running_gateway() as (_, _, url):
        await Replay(url, skip=lambda entry: name == "rpc_stream_ok" and entry.get("event") == "close").run(load(name))


async def test_errors_are_those_of_the_reference_but_for_our_own_sentence():
    async with running_gateway() as (_, _, url):
        own = '"id-circular","success"'
        entries = [entry for entry in load("rpc_error") if own not in str(entry).replace("'", '"').replace(": ", ":")]
        entries = [entry for entry in entries if entry.get("frame", {}).get("id") != "id-circular"]
        await Replay(url).run(entries)


async def test_refusals_before_the_upgrade_are_those_of_the_reference():
    async with running_gateway() as (_, _, url):
        # c1 is refused for its token (later); the reference cuts c5 off, whose subprotocol nobody selects
        await Replay(url, skip=lambda entry: entry["conn"] == "c1" or entry.get("code") == 1006).run(
            load("reject_unauthorized")
        )


async def test_a_twin_with_the_same_id_gets_the_state_too():
    async with running_gateway() as (_, _, url):
        entries = load("duplicate_pk_state")
        sent = next(i for i, e in enumerate(entries) if e["dir"] == "c2s" and e.get("frame", {}).get("state"))
        twin = {"conn": "c2", "dir": "s2c", "frame": {"state": {"count": 2}, "type": "cf_agent_state"}}
        await Replay(url).run([*entries[: sent + 1], twin, *entries[sent + 1 :]])
