"""Names of conversations, and where their objects are in a store."""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class ConversationKey:
    """A conversation is known by the kebab name of its agent and its own name (any text, 1-512 bytes)."""

    agent: str
    name: str

    @property
    def digest(self) -> str:
        """64 hexadecimal digits; no client text ever becomes a path."""
        text = f"{self.agent}\0{self.name}".encode("utf-8", "surrogatepass")
        return hashlib.sha256(text).hexdigest()

    @property
    def prefix(self) -> str:
        """Prefix of this conversation's objects in a store, without a slash at the end."""
        digest = self.digest
        return f"{digest[:2]}/{digest}"

    def __str__(self) -> str:
        return f"{self.agent}/{self.name}"
