"""How a command that was certainly not executed is refused, each kind in its own way."""

from dataclasses import dataclass

from actors.cluster.control import WakeRefused
from actors.cluster.front import Front
from actors.cluster.outstanding import Sent
from actors.cluster.rooms import Room
from actors.conversation.events import (
    Command,
    Connect,
    ConnectionId,
    Disconnect,
    Failure,
    Message,
    Rpc,
    SetState,
    StateRefused,
)
from actors.errors import Busy, CallFailed, Draining, NotMine
from storage.errors import Fenced, OutcomeUnknown, StorageError, StoreUnavailable

_RESTART, _TRY_LATER, _BROKEN = 1012, 1013, 1011
_RETRYABLE = {error.code: error for error in (Busy, Draining, NotMine, Fenced, StoreUnavailable)}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why: the stable code and the sentence of an error."""

    code: str
    sentence: str

    @classmethod
    def of(cls, error: StorageError | WakeRefused) -> "Refusal":
        if isinstance(error, WakeRefused):
            return cls(error.code, error.sentence)
        return cls(error.code, str(error))

    @property
    def close_code(self) -> int:
        """1012 and 1013 tell a client to come back; 1011 does too, but says that this side is broken."""
        if self.code == Draining.code:
            return _RESTART
        return _TRY_LATER if self.code in _RETRYABLE else _BROKEN

    def error(self) -> StorageError:
        """The same for a Python caller."""
        if self.code == StoreUnavailable.code:
            return StoreUnavailable("at wake")
        kind = _RETRYABLE.get(self.code)
        return kind() if kind is not None else CallFailed(self.sentence, self.code)


def refuse(front: Front, room: Room, command: Command, why: Refusal) -> None:
    """Tells the client. What has no answer of its own, a `Connect` or a `Message`, is answered by closing its socket."""
    connection = command.connection
    match command:
        case Rpc():
            front.event(Failure(connection, command.call, why.sentence, why.code, was_executed=False))
        case SetState():
            front.event(StateRefused(connection, why.sentence))
        case Connect() | Message():
            close(front, room, connection, why)
        case Disconnect():
            room.leave(connection)


def close(front: Front, room: Room, connection: ConnectionId, why: Refusal) -> None:
    """Once for each socket."""
    if connection not in room.lost_sockets:
        room.lost_sockets.add(connection)
        front.lost(connection, why.close_code, why.code)


def refuse_all(front: Front, room: Room, why: Refusal) -> None:
    """All that waits in the room, Python callers too; not what tells an actor that still holds it that a socket has left."""
    commands, room.owed = room.empty_line(), 0
    if room.actor is not None:
        room.put_back([command for command in commands if isinstance(command, Disconnect)])
        commands = [command for command in commands if not isinstance(command, Disconnect)]
    acquirers, room.acquirers = room.acquirers, []
    for command in commands:
        refuse(front, room, command, why)
    for acquirer in acquirers:
        if not acquirer.done():
            acquirer.set_exception(why.error())


def unknown(front: Front, calls: list[Sent]) -> None:
    """These were sent to an actor that is no more."""
    for sent in calls:
        error = OutcomeUnknown()
        front.event(Failure(sent.connection, sent.call, str(error), error.code, was_executed=True))
