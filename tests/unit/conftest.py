"""Unit tests start no Ray."""

import sys
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a unit test must not start Ray")

    if "ray" in sys.modules:
        monkeypatch.setattr(sys.modules["ray"], "init", refuse)
