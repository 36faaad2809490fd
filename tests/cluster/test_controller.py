"""What a server says when its gateway keeps dying."""

import logging
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("how", ["Ray's own", "of the gateway", "none"])
def test_a_gateway_that_keeps_dying_is_told_in_one_line(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    from ray.exceptions import ActorDiedError, RayTaskError  # not before `local_ray` has set Ray's variables

    from actors.cluster import controller
    from actors.cluster.errors import GaveUp
    from actors.cluster.options import NodeOptions
    from actors.cluster.placement import THE_NODE
    from actors.settings import Settings

    error, reason = {
        "Ray's own": (ActorDiedError(), "ActorDiedError"),
        "of the gateway": (RayTaskError("ended", "Traceback of\nmany lines", ValueError("a text")), "ValueError"),
        "none": (None, "it ended by itself"),
    }[how]
    monkeypatch.setattr(controller, "MAX_DEATHS", 2)
    settings = Settings(data=tmp_path, port=0, agents=())
    server = controller.Controller(NodeOptions(settings, str(tmp_path), THE_NODE, controller.GATEWAY, 0))

    def start_again(*_: Any) -> None:
        server._events.put((server._gateway, error))

    monkeypatch.setattr(server, "_start_gateway", start_again)
    start_again()
    with caplog.at_level(logging.WARNING, "perdure.controller"), pytest.raises(GaveUp) as caught:
        server.run()
    assert str(caught.value) == f"The gateway died 2 times within a minute, the last time of this: {reason}"
    assert caplog.messages == [f"The gateway died ({reason})"] * 2
