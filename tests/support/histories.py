"""Random histories with tool calls whose pairs are known, and what a fold leaves of them."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

Message = dict[str, Any]


def text(identity: str, role: str = "user", words: str | None = None) -> Message:
    return {"id": identity, "role": role, "parts": [{"type": "text", "text": words or f"text of <{identity}>"}]}


def call(identity: str, *call_ids: str, state: str = "input-available") -> Message:
    """An assistant message with one call for each id."""
    calls = [{"type": "tool-f", "toolCallId": key, "toolName": "f", "input": {}, "state": state} for key in call_ids]
    return {"id": identity, "role": "assistant", "parts": calls}


def result(identity: str, *call_ids: str, output: Any = "r") -> Message:
    """A message of role ``tool`` with one result for each id."""
    results = [{"type": "tool-f", "toolCallId": key, "toolName": "f", "output": output} for key in call_ids]
    return {"id": identity, "role": "tool", "parts": results}


def overlay(identity: str, summary: str | None = None) -> Message:
    return text(f"compaction_{identity}", "assistant", summary or f"summary <{identity}>")


def talk(count: int, prefix: str = "m") -> list[Message]:
    return [text(f"{prefix}{number}", "assistant" if number % 2 else "user") for number in range(count)]


@dataclass
class Pair:
    """Ids of the messages of a call and of its result (None: it never came)."""

    call: str
    result: str | None = None
    stands_alone: bool = False
    state: str = "input-available"


@dataclass
class History:
    messages: list[Message] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)

    def later(self, identity: str) -> int:
        """How many messages that are no bare results came after this one."""
        index = self.index(identity)
        return sum(message["role"] != "tool" for message in self.messages[index + 1 :])

    def index(self, identity: str) -> int:
        return next(index for index, message in enumerate(self.messages) if message["id"] == identity)


STYLES = ("typed", "parts", "update", "preliminary")


@st.composite
def histories(draw: st.DrawFn, *, overlays: bool = True, max_slots: int = 45) -> History:
    """Talk with 0 to 5 calls in it, parallel or not, answered at once, later or never; each pair in one of several forms."""
    slots = draw(st.integers(1, max_slots))
    history = History()
    plans: list[dict[str, Any]] = []
    for number in range(draw(st.integers(0, 5))):
        at = draw(st.integers(0, slots - 1))
        delay = draw(st.sampled_from([0, 0, 0, 1, 2, 7, 30, None]))
        style = draw(st.sampled_from(STYLES))
        state = draw(st.sampled_from(["input-available", "input-streaming", "approval-requested"]))
        plans.append({"key": f"k{number}", "at": at, "delay": delay, "style": style, "state": state})
    for slot in range(slots):
        _answer(history, plans, [plan for plan in plans if plan["delay"] and plan["at"] + plan["delay"] == slot])
        if overlays and draw(st.integers(0, 19)) == 0:
            history.messages.append(overlay(f"o{slot}"))
        history.messages.append(text(f"t{slot}", draw(st.sampled_from(["user", "assistant"]))))
        asked = [plan for plan in plans if plan["at"] == slot]
        if asked:
            history.messages.append(
                {"id": f"c{slot}", "role": "assistant", "parts": [_call_part(plan) for plan in asked]}
            )
        for plan in asked:
            is_silent = plan["style"] == "preliminary"
            plan["pair"] = Pair(f"c{slot}", state="" if is_silent else plan["state"])
            history.pairs.append(plan["pair"])
        _answer(history, plans, [plan for plan in asked if plan["delay"] == 0])
    return history


def _call_part(plan: dict[str, Any]) -> dict[str, Any]:
    if plan["style"] == "parts":
        return {"type": "tool-call", "toolCallId": plan["key"], "toolName": "f", "input": {}, "state": plan["state"]}
    if plan["style"] == "preliminary":
        return {
            "type": "dynamic-tool",
            "toolCallId": plan["key"],
            "toolName": "f",
            "input": {},
            "output": "so far",
            "preliminary": True,
        }
    return {"type": "tool-f", "toolCallId": plan["key"], "input": {}, "state": plan["state"]}


def _answer(history: History, plans: list[dict[str, Any]], answered: list[dict[str, Any]]) -> None:
    for plan in answered:
        identity = f"r-{plan['key']}"
        key = plan["key"]
        match plan["style"]:
            case "parts":
                message = {
                    "id": identity,
                    "role": "tool",
                    "parts": [{"type": "tool-result", "toolCallId": key, "result": 1}],
                }
            case "update":
                part = {
                    "type": "tool-f",
                    "toolCallId": key,
                    "input": {},
                    "output": {"a": 1},
                    "state": "output-available",
                }
                message = {"id": identity, "role": "assistant", "parts": [part]}
            case _:
                message = result(identity, key)
        history.messages.append(message)
        plan["pair"].result = identity
        plan["pair"].stands_alone = plan["style"] == "update"
