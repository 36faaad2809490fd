"""What keeps a server from starting or from going on; `start.py` prints the sentence and exits non-zero."""

from actors.errors import ActorsError


class ServerError(ActorsError):
    """``args`` hold the one sentence for the person at the terminal."""

    code = "server_error"
    sentence = "{0}"


class CannotStart(ServerError):
    """The settings or the machine do not allow it; starting again as it is would fail the same way."""

    code = "cannot_start"


class GaveUp(ServerError):
    """It ran, and cannot go on: the gateway keeps dying, or Ray is gone."""

    code = "gave_up"


class NotServed(ServerError):
    """A handle found no gateway: nothing of ours runs on this cluster, or it was stopped."""

    code = "not_served"
