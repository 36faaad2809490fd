"""`ChatAgent`: a chat with any OpenAI-compatible model, ready to be served or subclassed."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, ClassVar
from uuid import uuid4

from actors.agent import Stream
from actors.chat.reply import COMPLETE, Reply, reply_id, status_of
from actors.chat.tools import tools_of
from actors.chat.turn import Turn
from actors.default_agent import Conversation
from actors.errors import NoModel
from actors.models import Model
from actors.rpc import rpc
from actors.session.tools import Tool
from storage.errors import InvalidArgument
from storage.records import COMPACTION_PREFIX, clean

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
    take. A tool that is no ``async def`` runs in a thread, which nothing can end: after its time, and when the turn is cancelled,
    it runs on, its answer is dropped, and what it does is done. Of the calls in one answer of the model 128 are run, the others
    get an error. An answer may say nothing new for ``model_seconds``, and take ``model_answer_seconds`` in all (settings; 120 and
    600 are the defaults): then the turn fails, and the next one has its place. The tokens of the model's calls are in the reply's
    ``metadata.usage`` and, where the session is listed in the registry of a `SessionManager`, in its row.
    """

    max_steps: ClassVar[int] = 10
    tool_seconds: ClassVar[float] = 120.0

    def __init__(self, **facts: Any) -> None:
        super().__init__(**facts)
        self._one_at_a_time = asyncio.Lock()
        self._turns: list[tuple[str, Turn]] = []  # that run or wait, with the ids of their questions

    # ---- hooks ------------------------------------------------------------------------------------------------

    def tools(self) -> Mapping[str, Tool | Callable[..., Any]]:
        """The agent's own tools by name, beside those of the session: functions, async or not, or `Tool` objects.

        Names are up to 64 letters, digits, ``_`` and ``-``. The text of an exception that one raises is shown to the model and to
        the client; the log has its class and place.
        """
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
        it is, one that was cut short is gone on with where it is (tools that ran are not run again). A cancelled reply is
        complete, so its fragment comes back: to try again, ask with a new id. The id alone says which question it is: with
        another ``text`` the old question is answered, and the text is dropped. One turn runs at a time; another waits for it.
        Raises `ModelError`; question and partial reply stay.

        The reply is right below its question, and the model is told the path to that question, not what others have appended
        since. A new question becomes the latest leaf with its empty reply, in one moment; what is appended while the reply is
        written comes behind it. Only a question that was stored before without a reply (with ``appendMessage``, say), and that
        others have been appended to, gets its reply as a new branch: that is the latest leaf then, as is every message that was
        added last, and the older branch is where it was.

        A reply that reaches the largest size of a message ends there, with the status ``full``, which is complete. If question
        or reply is deleted meanwhile, the turn ends with `UnknownMessage` at its next step or save, and stores nothing more.
        """
        model = self.chat_model()
        if model is None:
            raise NoModel()
        question_id = _question_id(text, message_id)
        turn = Turn(
            self.session,
            stream,
            own_tools=tools_of(self.tools()),
            max_steps=self.max_steps,
            tool_seconds=self.tool_seconds,
        )
        entry = (question_id, turn)
        self._turns.append(entry)
        try:
            async with self._one_at_a_time:
                limit = self.settings.max_message_bytes
                reply = await Reply.begin(self.session, question_id, text, model=model.name, limit=limit)
                message = reply.message if reply.is_complete else await turn.run(model, reply)
        finally:
            self._turns.remove(entry)
        await stream.end({"message": message})

    @rpc
    async def cancel_chat(self, message_id: str | None = None) -> bool:
        """End the turn of this question, or (none given) all that run or wait. What was written stays, and the stream ends with
        that. Whether a turn ends by it; False if it only returns a reply that is complete."""
        wanted = clean(message_id) if isinstance(message_id, str) else message_id
        found = [entry for entry in self._turns if wanted in (None, entry[0])]
        ended = [turn.cancel() for _, turn in found if turn.has_begun]
        for entry in [entry for entry in found if not entry[1].has_begun]:
            is_complete = await self._is_answered(entry[0])
            ended.append(entry in self._turns and not is_complete and entry[1].cancel())
        return any(ended)

    async def _is_answered(self, question_id: str) -> bool:
        reply = await self.session.get_message(reply_id(question_id))
        return reply is not None and status_of(reply) in COMPLETE


def _question_id(text: object, message_id: object) -> str:
    """The id of a question, a new one if none is given. Raises InvalidArgument."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidArgument("The question must be a text and must not be empty.")
    if message_id is None:
        return uuid4().hex
    if not isinstance(message_id, str) or not message_id:
        raise InvalidArgument("The id of a question must be a text and must not be empty.")
    identity = clean(message_id)  # as it is stored
    if identity.startswith(COMPACTION_PREFIX):
        raise InvalidArgument(f"The id of a question must not begin with {COMPACTION_PREFIX!r}.")
    return identity
