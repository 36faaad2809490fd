"""Where a keeper's actors come from. The keeper knows nothing of Ray; this is what it needs of it."""

from typing import Protocol


class ActorSource(Protocol):
    """Starts and ends the processes that hold conversations; called on the keeper's event loop."""

    async def start(self, token: str) -> None:
        """Begin one actor. It connects to the keeper's lane listener and says `Hello` with this token.

        Returns when it has been begun, at the latest when it says Hello; raises when it cannot be. Must not block
        the loop. The keeper begins one at a time.
        """

    def kill(self, pid: int) -> None:
        """SIGKILL, now; the end of file of its lane then tells that it is dead. No error if it is gone already."""

    def handle(self, token: str) -> object:
        """What Python code calls methods of that actor with."""

    def forget(self, token: str) -> None:
        """That actor's lane has ended, or it never came in time: drop its handle (which ends it if it still comes)."""
