"""Who may do what: every use of a conversation asks `authorize`.

There are no credentials yet, so there is one principal, who may do everything; the gateway then serves loopback only.
"""

from dataclasses import dataclass

from actors.rpc import VERBS


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sends a request. ``name`` "" = nobody in particular: no credentials are configured."""

    name: str


ANYBODY = Principal("")


def authorize(principal: Principal, agent: str, name: str, verb: str) -> bool:
    """Whether ``principal`` may do ``verb`` to the conversation (agent, name)."""
    return verb in VERBS


def verbs_of(principal: Principal, agent: str, name: str) -> tuple[str, ...]:
    """All that a principal may do to a conversation."""
    return tuple(verb for verb in VERBS if authorize(principal, agent, name, verb))
