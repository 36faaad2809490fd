"""What the board tells of a conversation, from the frames that a real one pushes."""

import json

from agents_for_tests import Probe
from awake import KEY, awake

from actors.calling import Status
from actors.cluster.lane import LaneDecoder, encode_batches, encode_message
from actors.cluster.status import StatusBoard
from actors.conversation.events import Push


def _message(number: int) -> dict[str, object]:
    return {"id": f"m{number}", "role": "user", "parts": [{"type": "text", "text": "word " * 80}]}


def _told(pushes: list[Push]) -> Status:
    """What a subscriber hears after these came over a lane."""
    board = StatusBoard()
    messages = LaneDecoder().feed(encode_batches(encode_message(1, push) for push in pushes))
    for _, push in messages:
        assert isinstance(push, Push)
        board.pushed(KEY, push)
    [status] = board.subscribe(KEY)._news.values()
    assert status.frame is not None
    return Status.from_frame(json.loads(status.frame), None)


async def test_a_compaction_is_told_with_what_it_saved_and_a_state_change_is_no_status(tmp_path):
    async with awake(tmp_path, compact_after=100_000) as hall:
        await hall.connect()
        for number in range(5):
            await hall.call("appendMessage", _message(number))
        await hall.call("compact")
        pushes = [event for event in hall.events if isinstance(event, Push)]
        told = _told(pushes)
        assert told.phase == "idle"
        assert told.tokens_before is not None
        assert told.token_estimate < told.tokens_before
        await hall.call("increase")
        pushes = [event for event in hall.events if isinstance(event, Push)]
        assert json.loads(pushes[-1].frame)["type"] == "cf_agent_state"
        assert _told(pushes) == told


class Failing(Probe):
    async def fold(self, messages, *_):
        raise RuntimeError("no model")


async def test_a_failed_compaction_is_told_by_its_error_and_then_by_what_is_so(tmp_path):
    async with awake(tmp_path, Failing, compact_after=100_000) as hall:
        await hall.connect()
        await hall.call("appendMessage", _message(1))
        hall.send("c", "compact")
        await hall.answer("c")
        pushes = [event for event in hall.events if isinstance(event, Push)]
        [error] = [number for number, push in enumerate(pushes) if b"cf_agent_session_error" in push.frame]
        assert (_told(pushes[: error + 1]).phase, _told(pushes[: error + 1]).error) == ("error", "no model")
        assert _told(pushes).phase == "idle"


async def test_what_an_agent_broadcasts_itself_is_no_status(tmp_path):
    async with awake(tmp_path) as hall:
        hall.conversation.broadcast({"type": "cf_agent_session_news", "phase": "idle"})
        hall.conversation.broadcast('{"type": "cf_agent_session"}')
        board = StatusBoard()
        for event in hall.events:
            if isinstance(event, Push):
                board.pushed(KEY, event)
        [status] = board.subscribe(KEY)._news.values()
        assert status.frame is None
