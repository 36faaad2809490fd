"""How a command that was certainly not executed is refused, each kind in its own way."""

from dataclasses import dataclass

from actors.cluster.control import WakeRefused
from actors.cluster.front import Front
from actors.cluster.outstanding import Sent
from actors.cluster.rooms import Room, Socket
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
from actors.errors import CallFailed, Draining
from actors.wire_errors import error_from
from storage.errors import Damaged, OutcomeUnknown, StorageError

_RESTART, _TRY_LATER, _BROKEN = 1012, 1013, 1011


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
        return _TRY_LATER if self.error().is_retryable else _BROKEN

    def error(self) -> StorageError:
        """The same for a Python caller."""
        error = error_from(self.sentence)
        return error if error.code == self.code else CallFailed(self.sentence, self.code)


def refuse(front: Front, room: Room, command: Command, why: Refusal) -> None:
    """Tells the client. What has no answer of its own, a `Connect` or a `Message`, is answered by closing its socket.

    But a socket that joins a damaged conversation stays open, and each of its calls gets the sentence. Clients come back
    after every close but 1008 and 4000-4999 (PROTOCOL.md section 10), here in vain, at the cost of a process each time;
    after those they stop for good, and their calls fail without the sentence, also when it has been restored.
    """
    connection = command.connection
    match command:
        case Connect() if isinstance(why.error(), Damaged):
            room.sockets.setdefault(connection, Socket(command))  # joins when a later call can wake the conversation
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
    # calls first: a socket that closes shows no answers
    commands.sort(key=lambda command: not isinstance(command, Rpc | SetState))
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
