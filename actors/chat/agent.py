"""`ChatAgent`: a chat with any OpenAI-compatible model, ready to be served or subclassed."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, ClassVar
from uuid import uuid4

from actors.agent import Stream
from actors.chat.reply import Reply
from actors.chat.tools import tools_of
from actors.chat.turn import Turn
from actors.default_agent import Conversation
from actors.errors import NoModel
from actors.models import Model
from actors.rpc import rpc
from actors.session.tools import Tool
from storage.errors import InvalidArgument
from storage.records import COMPACTION_PREFIX

__all__ = ["ChatAgent"]


class ChatAgent(Conversation):
    """A `Conversation` that answers. Clients may call the Session API, `chat` and `cancelChat`.

    ::

        class Assistant(ChatAgent):
            def configure(self):
                return super().configure().with_context("soul", provider="You help travellers.")

            def tools(self):
                return {"weather": self.weather}

            async def weather(self, city: str) -> str:
                "Tells the weather of a city."
                ...

    ``max_steps``: how often a turn asks the model; the last time it is asked for words. ``tool_seconds``: how long a tool may
    take. The tokens of the model's calls are in the reply's ``metadata.usage`` and, where the session is listed in the registry
    of a `SessionManager`, in its row.
    """

    max_steps: ClassVar[int] = 10
    tool_seconds: ClassVar[float] = 120.0

    def __init__(self, **facts: Any) -> None:
        super().__init__(**facts)
        self._one_at_a_time = asyncio.Lock()
        self._turns: list[tuple[str, Turn]] = []  # that run or wait, with the ids of their questions

    # ---- hooks ------------------------------------------------------------------------------------------------

    def tools(self) -> Mapping[str, Tool | Callable[..., Any]]:
        """The agent's own tools by name, beside those of the session: functions, async or not, or `Tool` objects."""
        return {}

    def chat_model(self) -> Model | None:
        """The model that answers: the one of the settings."""
        return Model.of(self.settings)

    # ---- calls ------------------------------------------------------------------------------------------------

    @rpc(streaming=True)
    async def chat(self, stream: Stream, text: str, message_id: str | None = None) -> None:
        """Append a question and stream the answer. It goes on when the client goes.

        Chunks: ``{type: "text-delta", text}``, ``{type: "tool-call", toolCallId, toolName, input}`` and ``{type: "tool-result",
        toolCallId, toolName, state, output | errorText}``. Final value: ``{message}``, the reply as it is stored.

        ``message_id`` is the question's id. Called again with it, the question is not doubled: a complete reply is returned as
        it is, one that was cut short is gone on with (tools that ran are not run again). One turn runs at a time; another
        waits for it. Raises `ModelError`; question and partial reply stay.
        """
        model = self.chat_model()
        if model is None:
            raise NoModel()
        if not text.strip():
            raise InvalidArgument("The text of a question must not be empty.")
        turn = Turn(
            self.session,
            stream,
            own_tools=tools_of(self.tools()),
            max_steps=self.max_steps,
            tool_seconds=self.tool_seconds,
        )
        entry = (uuid4().hex if message_id is None else message_id, turn)
        self._turns.append(entry)
        try:
            async with self._one_at_a_time:
                await self._ask(text, entry[0])
                reply = await Reply.begin(self.session, entry[0], model.name)
                message = reply.message if reply.is_complete else await turn.run(model, reply)
        finally:
            self._turns.remove(entry)
        await stream.end({"message": message})

    @rpc
    async def cancel_chat(self, message_id: str | None = None) -> bool:
        """End the turn of this question, or (none given) all that run or wait. What was written stays, and the stream ends with
        that. Whether there was one."""
        found = [turn for question_id, turn in self._turns if message_id in (None, question_id)]
        return any([turn.cancel() for turn in found])

    async def _ask(self, text: str, message_id: str) -> None:
        """Store the question, unless it is there."""
        if message_id.startswith(COMPACTION_PREFIX):
            raise InvalidArgument(f"The id of a question must not begin with {COMPACTION_PREFIX!r}.")
        known = await self.session.get_message(message_id)
        if known is not None and known["role"] != "user":
            raise InvalidArgument(f"The message {message_id!r} is no question.")
        if known is None:
            question = {"id": message_id, "role": "user", "parts": [{"type": "text", "text": text}]}
            await self.session.append_message(question)
