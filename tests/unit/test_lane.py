"""The codec of the lane between a keeper and its actors."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.cluster import lane
from actors.cluster.control import Asleep, Awake, Hello, Lost, Ping, Pong, Sleep, Stay, Wake, WakeRefused
from actors.cluster.lane import Body, LaneDecoder, LaneError, encode_batches, encode_message
from actors.conversation.events import (
    Close,
    Connect,
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

ALL: list[Body] = [
    Hello(4711, "t0ken"),
    Wake("chat", "a/b\u0000ü"),
    Wake("chat", "lone \ud800 surrogate"),
    Awake(0),
    Awake(2**63),
    WakeRefused("store_unavailable", "The store gives no answer.", True),
    WakeRefused("corrupt_record", "\udfff", False),
    Sleep(True, 20.0, False),
    Sleep(False, 0, True),
    Asleep(True),
    Asleep(False),
    Stay(),
    Lost("fenced by epoch 7"),
    Ping(1),
    Pong(2**64 - 1),
    Connect(1, "pk", "/agents/chat/x?y=1", "", False, ()),
    Connect(2, "pk", "/\ud800", "ann", True, ("read", "write"), None),
    Connect(3, "pk", "/", "ann", True, ("read",), b""),
    Connect(3, "pk", "/", "ann", False, ("read",), b'{"a":1}'),
    Disconnect(2**40),
    Rpc(5, b'{"id":"1"}', b'"1"'),
    SetState(5, b'{"state":null}'),
    Message(5, b"\x00\xff", False),
    Message(5, b"", True),
    Connected(1, None, False, True),
    Connected(1, b"", True, False),
    Connected(1, b'{"n":1}', False, True),
    Result(1, b'"7"', None, True),
    Result(1, b'"7"', b"null", False),
    Failure(1, b'"7"', "it broke \ud800", "call_failed", True),
    Failure(1, b'"7"', "", "", False),
    StateRefused(9, "Connection is readonly"),
    Push(b"{}", True, None, "idle"),
    Push(b"{}", False, 0, ""),
    Push(b"{}", False, None, "", is_status=True),
    Direct(1, b"hi", True),
    Close(1, 4000, "because"),
    Saved(1, b"{}"),
    Returned(Rpc(5, b"{}", b'"\xc3\xbc"')),
    Returned(Connect(5, "c", "/", "", False, ("a",), b"1")),
]


def _round_trip(bodies: list[Body], sizes: random.Random) -> list[tuple[int, Body]]:
    data = encode_batches(encode_message(n, body) for n, body in enumerate(bodies))
    decoder = LaneDecoder()
    found: list[tuple[int, Body]] = []
    while data:
        size = sizes.choice((1, 2, 3, 50, 5000))
        found += decoder.feed(data[:size])
        data = data[size:]
    return found


def test_every_kind_of_message_survives_with_its_lease_in_pieces_of_any_size() -> None:
    for seed in range(20):
        assert _round_trip(ALL, random.Random(seed)) == list(enumerate(ALL))


def test_the_sample_above_has_every_kind() -> None:
    assert {type(body) for body in ALL} == {kind for kind, _, _ in lane._KINDS}


def test_many_messages_make_few_batches_and_a_long_one_travels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "FULL_BATCH_BYTES", 100)
    bodies: list[Body] = [Rpc(1, b"x" * n, b"1") for n in (10, 10, 10, 500, 10)]
    assert _round_trip(bodies, random.Random(1)) == list(enumerate(bodies))


def test_nothing_to_send_is_no_bytes() -> None:
    assert encode_batches([]) == b""


def test_a_message_over_the_limit_is_refused_by_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "MAX_BATCH_BYTES", 1000)
    with pytest.raises(LaneError):
        encode_message(1, Rpc(1, b"x" * 1000, b"1"))


def test_a_batch_over_the_limit_is_refused_before_its_bytes_have_come() -> None:
    with pytest.raises(LaneError):
        LaneDecoder(max_batch_bytes=1000).feed(b"\x00\x00\x03\xe9")


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(LaneError):
        LaneDecoder().feed(bytes(4))


def test_what_is_returned_can_only_be_a_command() -> None:
    data = encode_batches([encode_message(1, Returned(Awake(1)))])  # type: ignore[arg-type]
    with pytest.raises(LaneError):
        LaneDecoder().feed(data)


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_garbage_is_a_lane_error_or_nothing(data: bytes) -> None:
    decoder = LaneDecoder(max_batch_bytes=4096)
    try:
        decoder.feed(data)
        decoder.feed(len(data).to_bytes(4) + data if data else b"")
    except LaneError:
        pass


@given(st.sampled_from(ALL), st.data())
@settings(max_examples=500, deadline=None)
def test_a_damaged_message_is_a_lane_error_or_another_message(body: Body, data: st.DataObject) -> None:
    message = bytearray(encode_message(3, body))
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = LaneDecoder().feed(encode_batches([bytes(message)]))
    except LaneError:
        return
    assert all(type(decoded) in lane._ENCODERS for _, decoded in found)
