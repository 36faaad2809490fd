"""Reads conformance vectors (FORMAT.md sections 1 and 2) and says what a scenario needs."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = Any

DEFAULT_DIRECTORY = Path(__file__).parent / "vectors"

VOLATILE_PROVIDERS = {"writable", "write_error", "sequence"}


@dataclass(frozen=True, slots=True)
class Scenario:
    area: str
    name: str
    setup: dict[str, Any]
    steps: tuple[dict[str, Any], ...]
    broadcasts: tuple[dict[str, Any], ...] | None

    @property
    def key(self) -> tuple[str, str]:
        return (self.area, self.name)


def load_scenarios(directory: Path) -> list[Scenario]:
    """All scenarios of all files of a directory, in the order of file names; ``$repeat`` is expanded.

    Raises ValueError for a file that is not of this format, for two scenarios of one name and for an empty directory.
    """
    scenarios: list[Scenario] = []
    for path in sorted(directory.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("format") != 1:
            raise ValueError(f"{path} is not a vector file of format 1")
        scenarios.extend(_scenario(document["area"], raw) for raw in document["scenarios"])
    if not scenarios:
        raise ValueError(f"there are no vector files in {directory}")
    keys = [scenario.key for scenario in scenarios]
    if len(set(keys)) != len(keys):
        raise ValueError(f"two scenarios of one name: {sorted({key for key in keys if keys.count(key) > 1})}")
    return scenarios


def is_same_set(one: Path, other: Path) -> bool:
    """Whether two directories hold the same vector files, wherever they are."""
    return one.resolve() == other.resolve() or _texts(one) == _texts(other)


def _texts(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.json")}


def _scenario(area: str, raw: dict[str, Any]) -> Scenario:
    expanded = expand(raw)
    has_frames = bool(expanded["setup"].get("broadcast"))
    if has_frames != ("broadcasts" in expanded):
        raise ValueError(f"{area}/{raw['name']}: broadcasts are given exactly when setup.broadcast is true")
    return Scenario(
        area=expanded.get("area", area),
        name=expanded["name"],
        setup=expanded["setup"],
        steps=tuple(expanded["steps"]),
        broadcasts=tuple(expanded["broadcasts"]) if has_frames else None,
    )


def expand(value: Json) -> Json:
    """Replace every ``{"$repeat": [text, count]}`` by the string that it stands for."""
    if isinstance(value, dict):
        if set(value) == {"$repeat"}:
            text, count = value["$repeat"]
            return str(text) * int(count)
        return {key: expand(item) for key, item in value.items()}
    if isinstance(value, list):
        return [expand(item) for item in value]
    return value


def providers(scenario: Scenario) -> Iterator[dict[str, Any]]:
    """Every provider object that occurs anywhere in a scenario."""
    for block in scenario.setup.get("context", []):
        yield block.get("provider") or {}
    if isinstance(scenario.setup.get("cached_prompt"), dict):
        yield scenario.setup["cached_prompt"]
    for step in scenario.steps:
        if step["op"] == "add_context":
            yield step.get("args", {}).get("provider") or {}


def storage_only(scenario: Scenario) -> bool:
    """Whether all state of the scenario is in storage, so that it may hibernate between any two steps (FORMAT.md 2.5)."""
    for provider in providers(scenario):
        kind = provider.get("kind")
        if kind in VOLATILE_PROVIDERS or (kind in {"skill", "search"} and provider.get("writable")):
            return False
    operations = [step["op"] for step in scenario.steps]
    if {"add_context", "remove_context"} & set(operations) or scenario.setup["mode"] == "postgres":
        return False
    if any(step["op"] == "call_tool" and step["args"]["name"] == "load_context" for step in scenario.steps):
        return False
    if scenario.setup.get("context") and not scenario.setup.get("cached_prompt"):
        freezes = operations.count("freeze_system_prompt")
        return freezes == 0 or (freezes == 1 and "get_counter_calls" not in operations)
    return True
