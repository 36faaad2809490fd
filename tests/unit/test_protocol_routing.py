import pytest

from actors.gateway.routing import (
    INVALID_REQUEST,
    NAME_TOO_LONG,
    NO_SUB_AGENTS,
    NOT_FOUND,
    Route,
    client_id,
    find,
    query_value,
    without_token,
)

AGENTS = {"echo-agent", "conversation"}


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/agents/conversation/alice", Route("conversation", "alice", ())),
        ("/agents/conversation/alice?_pk=1&x=/a/b", Route("conversation", "alice", ())),
        ("//agents//echo-agent//abc/", Route("echo-agent", "abc", ())),
        ("/agents/conversation/a%20b/c", Route("conversation", "a%20b", ("c",))),
        ("/agents/conversation/%2e%2e%2f", Route("conversation", "%2e%2e%2f", ())),
        ("/agents/conversation/..", Route("conversation", "..", ())),
        ("/agents/conversation/x/get-messages", Route("conversation", "x", ("get-messages",))),
        ("/agents/conversation/x/sub", Route("conversation", "x", ("sub",))),
        ("/agents/conversation/x/sub/y", Route("conversation", "x", ("sub", "y"))),
    ],
)
def test_a_path_leads_to_a_conversation_by_its_raw_segments(path, route):
    assert find(path, AGENTS, 512) == route


@pytest.mark.parametrize(
    "path", ["/", "", "/agents", "/agents/conversation", "/agents/conversation/", "/other/x/y", "*"]
)
def test_other_paths_are_not_found(path):
    assert find(path, AGENTS, 512) is NOT_FOUND


@pytest.mark.parametrize("agent", ["EchoAgent", "Echo-Agent", "nope", "echo%2Dagent"])
def test_an_agent_is_matched_exactly(agent):
    assert find(f"/agents/{agent}/x", AGENTS, 512) is INVALID_REQUEST


def test_a_sub_agent_is_refused():
    assert find("/agents/conversation/p1/sub/child-agent/kid%201", AGENTS, 512) is NO_SUB_AGENTS


def test_a_name_has_a_largest_length():
    assert find("/agents/conversation/" + "x" * 512, AGENTS, 512) == Route("conversation", "x" * 512, ())
    assert find("/agents/conversation/" + "x" * 513, AGENTS, 512) is NAME_TOO_LONG


def test_the_first_pk_is_the_client_id_and_a_missing_one_is_made():
    assert client_id("/agents/a/b?_pk=one&_pk=two") == "one"
    assert client_id("/a?x=1&_pk=a%20b") == "a b"
    assert client_id("/a?_pk=") != client_id("/a?_pk=")
    assert client_id("/a?_pk=" + "x" * 257) != "x" * 257


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/a/b?token=secret", "/a/b"),
        ("/a/b?_pk=1&token=secret&mode=view", "/a/b?_pk=1&mode=view"),
        ("/a/b?tok%65n=secret&x=%20", "/a/b?x=%20"),
        ("/a/b?token=1&token=2", "/a/b"),
        ("/a/b?tokens=1", "/a/b?tokens=1"),
        ("/a/b", "/a/b"),
    ],
)
def test_a_token_never_goes_further_than_the_gateway(path, kept):
    assert without_token(path) == kept


def test_a_query_value_is_decoded():
    assert query_value("/a?token=x%2By", "token") == "x+y"
    assert query_value("/a", "token") is None
