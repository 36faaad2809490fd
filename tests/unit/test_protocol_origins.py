import logging

import pytest

from actors.cluster.errors import CannotStart
from actors.gateway.access import ANYBODY, authorize, verbs_of
from actors.gateway.origins import OriginRules, check_bind, is_loopback
from actors.redaction import quiet_logger, without_tokens

LOCAL = OriginRules([], is_loopback_bind=True, scheme="http")
LISTED = OriginRules(["https://app.example.com", "http://localhost:3000/"], is_loopback_bind=True, scheme="http")
BEHIND_PROXY = OriginRules([], is_loopback_bind=False, scheme=None)
HOST = "127.0.0.1:8787"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.8.8", "localhost", "LOCALHOST", "a.localhost", "::1", "[::1]", "::ffff:127.0.0.1"]
)
def test_loopback_names(host):
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example"]
)
def test_other_names_are_not_loopback(host):
    assert not is_loopback(host)
    with pytest.raises(CannotStart, match="loopback"):
        check_bind(host)


def test_a_request_without_an_origin_is_not_from_a_browser():
    assert LOCAL.refusal([], [HOST]) is None


def test_the_own_origin_is_accepted():
    assert LOCAL.refusal(["http://127.0.0.1:8787"], [HOST]) is None
    assert LOCAL.refusal(["http://localhost"], ["localhost:80"]) is None
    assert BEHIND_PROXY.refusal(["https://chat.example.com"], ["chat.example.com"]) is None


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "",
        "https://127.0.0.1:8787",
        "http://127.0.0.1:8788",
        "http://127.0.0.1",
        "http://localhost:8787",
        "HTTP://127.0.0.1:8787",
        "http://127.0.0.1:8787.evil.example",
        "http://127.0.0.1:8787/",
        "http://127.0.0.1:8787@evil.example",
    ],
)
def test_any_other_origin_is_refused(origin):
    assert LOCAL.refusal([origin], [HOST]) is not None


def test_listed_origins_are_accepted_exactly():
    assert LISTED.refusal(["https://app.example.com"], [HOST]) is None
    assert LISTED.refusal(["http://localhost:3000"], [HOST]) is None
    for other in (
        "https://app.example.com.evil",
        "https://APP.example.com",
        "https://app.example.com:8443",
        "http://app.example.com",
    ):
        assert LISTED.refusal([other], [HOST]) is not None


def test_two_origins_are_refused():
    assert LISTED.refusal(["https://app.example.com"] * 2, [HOST]) is not None


@pytest.mark.parametrize(
    "hosts",
    [
        ["evil.example:8787"],
        ["evil.example"],
        [],
        [HOST, HOST],
        ["127.0.0.1:x"],
        ["a@127.0.0.1"],
        ["127.0.0.1.evil.example"],
    ],
)
def test_on_a_loopback_bind_the_host_must_be_a_loopback_name(hosts):
    assert LOCAL.refusal([], hosts) is not None


def test_a_host_may_name_another_port():
    assert LOCAL.refusal([], ["localhost:9000"]) is None
    assert LOCAL.refusal([], ["[::1]:8787"]) is None


@pytest.mark.parametrize("value", ["app.example.com", "null", "*", "https://", "ftp://x", "https://a/b"])
def test_what_is_not_an_origin_cannot_be_listed(value):
    with pytest.raises(CannotStart, match="origin"):
        OriginRules([value], is_loopback_bind=True, scheme="http")


def test_without_credentials_everybody_may_do_everything_that_there_is():
    assert verbs_of(ANYBODY, "conversation", "alice") == ("read", "append", "edit", "delete", "admin")
    assert not authorize(ANYBODY, "conversation", "alice", "unheard-of")


def test_tokens_are_kept_out_of_logs(caplog):
    logger = quiet_logger("perdure.test.wire")
    with caplog.at_level(logging.DEBUG, "perdure.test.wire"):
        logger.debug("< GET %s HTTP/1.1", "/agents/a/b?_pk=1&token=canary-17&x=1")
    assert "canary-17" not in caplog.text
    assert "x=1" in caplog.text
    assert without_tokens("ws://h/?token=abc") == "ws://h/?token=(hidden)"
