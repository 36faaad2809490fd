"""What a keeper and an actor say to each other beside commands and events: waking, sleeping, being alive.

The life of a lane, seen from the actor::

    -> Hello                          once, as the first message; wrong token: the keeper closes the lane
    <- Wake      -> Awake | WakeRefused
    <- commands  -> events            only between Awake and Asleep, each with the lease of that wake
    <- Sleep     -> Stay | Asleep     Asleep comes behind the last event of that lease
    -> Lost                           at any time: another writer has the conversation; the actor ends itself
    <- Ping      -> Pong              at any time, answered by the event loop

Every message travels with a lease: the keeper's number of one wake (never 0, never used twice), 0 where none applies
(`Hello`, and `Ping` and `Pong` while the actor holds nothing). A command whose lease the actor does not hold comes
back as `Returned`; an event whose lease is not the actor's present one is dropped by the keeper.
"""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Hello:
    pid: int
    token: str  # that `ActorSource.start` was given


@dataclass(frozen=True, slots=True)
class Wake:
    """Claim and open this conversation."""

    agent: str  # kebab name
    name: str


@dataclass(frozen=True, slots=True)
class Awake:
    epoch: int  # 0 = nothing claimed yet: a name that was never written


@dataclass(frozen=True, slots=True)
class WakeRefused:
    """The conversation could not be woken; the actor holds nothing now.

    ``code`` and ``sentence`` are those of the typed error. ``is_spare_ok`` as in `Asleep`.
    """

    code: str
    sentence: str
    is_spare_ok: bool


@dataclass(frozen=True, slots=True)
class Sleep:
    """Hibernate, after everything that was sent before this.

    ``may_stay``: the actor answers `Stay` when something is running that must not be cut short. Otherwise what still
    runs after ``grace_seconds`` ends as outcome unknown. ``is_last``: the actor has served enough conversations;
    it says `Asleep` with ``is_spare_ok`` False and ends itself.
    """

    may_stay: bool
    grace_seconds: float
    is_last: bool


@dataclass(frozen=True, slots=True)
class Asleep:
    """The conversation is closed in the store and dropped. ``is_spare_ok`` False: this actor ends itself now."""

    is_spare_ok: bool


@dataclass(frozen=True, slots=True)
class Stay:
    """The answer to a `Sleep` that may be refused: something is running. The lease goes on as if nothing was asked."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Another writer has taken the conversation over; everything not executed has come back before this."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ping:
    number: int


@dataclass(frozen=True, slots=True)
class Pong:
    number: int  # of the `Ping`


Control: TypeAlias = Hello | Wake | Awake | WakeRefused | Sleep | Asleep | Stay | Lost | Ping | Pong
