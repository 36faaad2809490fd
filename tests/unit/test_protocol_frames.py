import json
import time

import pytest

from actors.gateway import protocol
from actors.gateway.protocol import OtherFrame, RpcFrame, StateFrame, UnreadableFrame, parse

CALL = {"type": "rpc", "id": "1", "method": "add", "args": [1, 2]}


def test_a_well_formed_request_keeps_the_text_of_its_client():
    text = '{"extra": true, "args":[1.0, 123456789012345678901234567890], "method":"add","id":"1","type":"rpc"}'
    assert parse(text) == RpcFrame(text.encode(), b'"1"')


def test_an_empty_id_is_an_id():
    assert parse(json.dumps({**CALL, "id": ""})) == RpcFrame(json.dumps({**CALL, "id": ""}).encode(), b'""')


@pytest.mark.parametrize(
    "changes",
    [
        {"type": "RPC"},
        {"type": None},
        {"id": 7},
        {"id": None},
        {"method": 5},
        {"args": {"a": 1}},
        {"args": None},
        {"args": "x"},
    ],
)
def test_a_malformed_request_is_no_request(changes):
    assert isinstance(parse(json.dumps({**CALL, **changes})), OtherFrame)


@pytest.mark.parametrize("missing", ["type", "id", "method", "args"])
def test_a_request_with_a_missing_key_is_no_request(missing):
    frame = {key: value for key, value in CALL.items() if key != missing}
    assert isinstance(parse(json.dumps(frame)), OtherFrame)


@pytest.mark.parametrize(
    "text", ["", " ", "not json", "null", "42", "[]", '"str"', "{}", "{", "ping", '{"type":"rpc"}', "[" * 100_000, "\0"]
)
def test_what_is_not_a_request_is_passed_on_as_it_came(text):
    assert parse(text) == OtherFrame(text.encode(), is_text=True)


OBJECTS = '{"a":' * 50_000 + "1" + "}" * 50_000
LISTS = "[" * 100_000 + "]" * 100_000
NUMBER = "9" * 5_000
DEEP = "The call was not executed: it is nested too deeply."
LARGE = "The call was not executed: a number in it is too large."


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (f'{{"type":"rpc","id":"\\u00e91","method":"add","args":{LISTS}}}', DEEP),
        (f'{{"args":[1,{OBJECTS},"]"],"x":[[1],{{}}], "type":"rpc","id":"é1","method":"a\\"[" }} ', DEEP),
        (f'{{"type":"rpc","id":"é1","method":"add","args":[], "x": -{NUMBER}}}', LARGE),
        (f'{{"type":"rpc","args":[{{"x":{NUMBER}}}],"id":"é1","method":"add"}}', LARGE),
    ],
)
def test_a_request_beyond_all_reason_is_answered(text, error):
    received = parse(text)
    assert isinstance(received, UnreadableFrame)
    assert json.loads(received.answer) == {"type": "rpc", "id": "é1", "success": False, "error": error}


def test_a_state_beyond_all_reason_is_refused():
    received = parse(f'{{"type":"cf_agent_state","state":{LISTS}}}')
    assert isinstance(received, UnreadableFrame)
    error = "The state was not stored: it is nested too deeply."
    assert json.loads(received.answer) == {"type": "cf_agent_state_error", "error": error}


@pytest.mark.parametrize(
    "text",
    [
        f'{{"type":"rpc","id":"1","method":"add","args":{LISTS[:-1]}}}',
        f'{{"type":"rpc","id":"1","method":"add","args":{LISTS}]}}',
        f'{{"type":"rpc","id":"1","method":"add","args":{LISTS}',
        f'{{"type":"rpc","id":"1","method":"add","args":{LISTS}}} x',
        f'{{"type":"rpc","id":7,"method":"add","args":{LISTS}}}',
        f'{{"type":"rpc","id":"1","method":"add","args":{OBJECTS}}}',
        f'{{"type":"ping","id":"1","method":"add","args":{LISTS}}}',
        f'{{"args":[{{"type":"rpc","id":"1","method":"add","args":[]}}],"x":{LISTS}}}',
        f'{{"x":{LISTS},"type":"rpc","id":"1","method":"add","args":"' + '\\"' * 2_000_000,
        f'{{"type":"rpc","id":"1","method":"add","args":[{"[{}]," * 1_000_000}{LISTS}]}}',
        NUMBER,
    ],
    ids=range(11),
)
def test_what_is_malformed_besides_is_ignored_and_costs_little(text, plain_seconds):
    started = time.process_time()
    assert isinstance(parse(text), OtherFrame)
    assert time.process_time() - started < 4 * plain_seconds


@pytest.fixture(scope="module")
def plain_seconds():
    """What reading as large a frame costs that is what it should be, in the same run."""
    text = f"[{'[{}],' * 1_000_000}0]"
    started = time.process_time()
    json.loads(text)
    return time.process_time() - started


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_what_javascript_does_not_parse_is_no_request(number):
    assert isinstance(parse('{"type":"rpc","id":"1","method":"add","args":[' + number + "]}"), OtherFrame)


def test_a_lone_surrogate_does_not_make_a_request_malformed():
    text = r'{"type":"rpc","id":"1","method":"add","args":["\ud83d"]}'
    assert parse(text) == RpcFrame(text.encode(), b'"1"')


def test_binary_is_never_read_as_protocol():
    payload = json.dumps(CALL).encode()
    assert parse(payload) == OtherFrame(payload, is_text=False)


@pytest.mark.parametrize("value", ["null", "0", "false", '""', "{}", "[1]"])
def test_any_json_value_is_a_state(value):
    text = '{"type":"cf_agent_state","state":' + value + "}"
    assert parse(text) == StateFrame(text.encode())


def test_a_state_frame_without_a_state_is_ignored():
    assert isinstance(parse('{"type":"cf_agent_state"}'), OtherFrame)


def test_frames_of_a_connect_are_those_of_the_protocol():
    assert json.loads(protocol.identity("conv-agent", "a%20b")) == {
        "name": "a%20b",
        "agent": "conv-agent",
        "type": "cf_agent_identity",
    }
    assert json.loads(protocol.state(b"null")) == {"state": None, "type": "cf_agent_state"}
    assert json.loads(protocol.MCP) == {
        "mcp": {"servers": {}, "tools": [], "prompts": [], "resources": []},
        "type": "cf_agent_mcp_servers",
    }


def test_a_method_that_returned_nothing_has_no_result_key():
    frame = json.loads(protocol.result(b'"1"', None, is_done=True))
    assert frame == {"done": True, "id": "1", "success": True, "type": "rpc"}


def test_a_result_is_spliced_unchanged():
    frame = protocol.result(b'"1"', b'{"b": 1,"a":12345678901234567890123}', is_done=False)
    assert b'"result":{"b": 1,"a":12345678901234567890123}' in frame
    assert json.loads(frame)["done"] is False


def test_a_failure_has_exactly_four_keys():
    frame = json.loads(protocol.failure(b'"\\u00e9"', 'a "quoted"\nline \ud83d'))
    assert frame == {"type": "rpc", "id": "é", "success": False, "error": 'a "quoted"\nline \ufffd'}


def test_a_refused_state_is_told_with_its_reason():
    assert json.loads(protocol.state_error("no")) == {"type": "cf_agent_state_error", "error": "no"}


def test_a_close_reason_fits_its_frame_and_splits_no_character():
    assert len(protocol.close_reason("é" * 100).encode()) == 122
    assert protocol.close_reason("short") == "short"


@pytest.mark.parametrize(
    ("code", "sent"), [(1000, 1000), (4001, 4001), (3000, 3000), (1005, 1011), (1006, 1011), (9, 1011)]
)
def test_only_codes_that_may_be_sent_are_sent(code, sent):
    assert protocol.close_code(code) == sent
