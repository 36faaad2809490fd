import pytest

from actors.gateway.outbox import ANSWER_FACTOR, Frame, Outbox


def frame(text: str, phase: str = "", is_answer: bool = False) -> Frame:
    return Frame(text.encode(), True, phase, is_answer)


def drain(outbox: Outbox) -> list[str]:
    return [outbox.take().payload.decode() for _ in range(len(outbox))]


def test_frames_leave_in_the_order_in_which_they_came():
    outbox = Outbox(100)
    for text in "abc":
        assert outbox.add(frame(text))
    assert drain(outbox) == ["a", "b", "c"]
    assert outbox.size == 0


def test_the_newest_status_takes_out_the_waiting_one():
    outbox = Outbox(100)
    for item in (frame("i1", "idle"), frame("r1", is_answer=True), frame("c1", "compacting"), frame("i2", "idle")):
        assert outbox.add(item)
    assert drain(outbox) == ["r1", "c1", "i2"]


def test_a_status_that_has_left_is_not_replaced():
    outbox = Outbox(100)
    outbox.add(frame("i1", "idle"))
    assert outbox.take().payload == b"i1"
    outbox.add(frame("x"))
    outbox.add(frame("i2", "idle"))
    assert drain(outbox) == ["x", "i2"]


def test_a_million_statuses_are_one_frame():
    outbox = Outbox(100)
    for number in range(100_000):
        assert outbox.add(frame(f"status {number}", "idle"))
    assert len(outbox) == 1
    assert outbox.size < 20


def test_what_nobody_asked_for_is_bounded():
    outbox = Outbox(10)
    assert outbox.add(frame("x" * 50))  # one frame of any size fits
    assert not outbox.add(frame("y"))
    assert drain(outbox) == ["x" * 50]


def test_answers_are_bounded_too_but_do_not_count_against_the_rest():
    outbox = Outbox(10)
    for _ in range(ANSWER_FACTOR):
        assert outbox.add(frame("x" * 11, is_answer=True))
    assert not outbox.add(frame("x", is_answer=True))
    assert outbox.add(frame("push"))


def test_an_empty_outbox_gives_nothing():
    outbox = Outbox(10)
    outbox.add(frame("x", "idle"))
    outbox.clear()
    assert len(outbox) == outbox.size == 0
    with pytest.raises(KeyError):
        outbox.take()
