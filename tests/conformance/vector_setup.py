"""Builds what a scenario's setup describes (FORMAT.md section 3): providers, counters, compaction functions, sessions."""

from dataclasses import dataclass, field
from typing import Any

import vector_postgres
import vector_summaries

from actors.session import Session
from storage import AgentContextProvider, AgentSearchProvider, AgentSessionProvider, R2SkillProvider
from storage.skills import SkillEntry

Setup = dict[str, Any]


@dataclass
class Harness:
    """What lives outside the conversation and survives its restarts: scripts, recorded calls, the bucket."""

    setup: Setup
    bucket: Any = None
    compaction_position: int = 0
    counter_position: int = 0
    sequence_positions: dict[str, int] = field(default_factory=dict)
    compaction_calls: list[dict[str, Any]] = field(default_factory=list)
    counter_calls: list[dict[str, Any]] = field(default_factory=list)
    compaction_errors: list[str] = field(default_factory=list)
    last_summary_prompt: str = ""

    def compact(self, messages: list[dict[str, Any]]) -> dict[str, Any] | None:
        """The compaction function of kind ``scripted``."""
        results = self.setup["compaction"]["results"]
        self.compaction_calls.append({"message_ids": [message["id"] for message in messages]})
        if self.compaction_position >= len(results):
            raise RuntimeError("script exhausted")
        result = results[self.compaction_position]
        self.compaction_position += 1
        if result is None:
            return None
        if "error" in result:
            raise RuntimeError(result["error"])
        if result.get("whole"):
            return {
                "fromMessageId": messages[0]["id"],
                "toMessageId": messages[-1]["id"],
                "summary": result["summary"],
            }
        return dict(result)

    def count_tokens(
        self, messages: list[dict[str, Any]], system_prompt: str, context_blocks: list[Any]
    ) -> float | int:
        """The session's token counter."""
        counter = self.setup["token_counter"]
        self.counter_calls.append(
            {
                "message_count": len(messages),
                "system_prompt": system_prompt,
                "block_labels": [block.label for block in context_blocks],
            }
        )
        match counter["kind"]:
            case "fixed":
                return float(counter["value"])
            case "per_message":
                return float(counter["value"]) * len(messages)
            case "chars":
                return sum(_text_length(message) for message in messages) + _utf16_length(system_prompt)
            case "prompt_chars":
                return _utf16_length(system_prompt)
            case "blocks":
                return len(context_blocks)
            case "error":
                raise RuntimeError(counter["message"])
            case "sequence":
                values = counter["values"]
                value = values[min(self.counter_position, len(values) - 1)]
                self.counter_position += 1
                return float(value)
        raise ValueError(counter)

    def on_compaction_error(self, error: BaseException) -> None:
        self.compaction_errors.append(str(error))
        if self.setup["compaction_error_handler"] == "throw":
            raise RuntimeError("the handler failed too")


def build_session(harness: Harness, owner: Any, session_id: str | None = None) -> Session:
    """A session as the setup says. `owner`: the database, or an object with ``.database`` and perhaps ``broadcast``."""
    setup = harness.setup
    match setup["mode"]:
        case "session":
            session = Session.create(owner)
        case "provider":
            session = Session.create(AgentSessionProvider(owner, session_id or ""))
        case "minimal_provider":
            session = Session.create(MinimalProvider(AgentSessionProvider(owner, session_id or "")))
        case "postgres":
            session = Session.create(vector_postgres.session_provider(owner, session_id or ""))
        case "constructor":
            return _construct(harness, owner, session_id)
        case other:
            raise ValueError(other)
    if session_id is not None:
        session = session.for_session(session_id)
    for block in setup.get("context", []):
        session = session.with_context(block["label"], **block_options(harness, owner, block))
    cached_prompt = setup.get("cached_prompt")
    if cached_prompt:
        store = None if cached_prompt is True else build_provider(harness, owner, cached_prompt, "prompt")
        session = session.with_cached_prompt(store)
    return with_compaction(harness, session, counter=True)


def _construct(harness: Harness, owner: Any, session_id: str | None) -> Session:
    setup = harness.setup
    cached_prompt = setup.get("cached_prompt")
    session = Session(
        AgentSessionProvider(owner, session_id or ""),
        context=[
            {"label": block["label"], **block_options(harness, owner, block)} for block in setup.get("context", [])
        ],
        prompt_store=build_provider(harness, owner, cached_prompt, "prompt") if cached_prompt else None,
        token_counter=harness.count_tokens if setup.get("token_counter") else None,
    )
    return with_compaction(harness, session, counter=False)


def with_compaction(harness: Harness, session: Any, *, counter: bool) -> Any:
    """The builder methods of compaction, on a session or on a manager."""
    setup = harness.setup
    if setup.get("compaction"):
        session = session.on_compaction(_compaction_function(harness))
    if "compact_after" in setup:
        options = {"token_counter": harness.count_tokens} if counter and setup.get("token_counter") else {}
        session = session.compact_after(setup["compact_after"], **options)
    if setup.get("compaction_error_handler"):
        session = session.on_compaction_error(harness.on_compaction_error)
    return session


def _compaction_function(harness: Harness) -> Any:
    if harness.setup["compaction"]["kind"] == "summarize":
        return vector_summaries.compact_function(harness)
    return harness.compact


def block_options(harness: Harness, owner: Any, block: dict[str, Any]) -> dict[str, Any]:
    options = {"description": block.get("description"), "max_tokens": block.get("maxTokens")}
    provider = build_provider(harness, owner, block.get("provider") or {}, block["label"])
    return {name: value for name, value in {**options, "provider": provider}.items() if value is not None}


def build_provider(harness: Harness, owner: Any, spec: dict[str, Any], place: str) -> Any:
    """A provider of FORMAT.md section 3.1, or None for the kinds that mean "none given"."""
    match spec.get("kind", "auto"):
        case "auto" | "none":
            return None
        case "readonly":
            return ReadOnly(spec.get("content"))
        case "sequence":
            return Sequence(harness, place, spec["contents"])
        case "writable":
            return Writable(spec.get("content"))
        case "write_error":
            return WriteError(spec.get("content"), spec["message"])
        case "error":
            return GetError(spec["message"])
        case "init_label":
            return InitLabel()
        case "sqlite":
            return AgentContextProvider(owner, spec["key"])
        case "skill":
            return (WritableSkills if spec.get("writable") else Skills)(spec)
        case "search":
            return (WritableSearch if spec.get("writable") else Search)(spec)
        case "bucket_skill":
            return _bucket_skills(harness, spec)
        case "agent_search":
            return AgentSearchProvider(owner)
        case "pg_context":
            return vector_postgres.context_provider(owner, spec["key"])
        case "pg_search":
            return vector_postgres.search_provider(owner)
    raise ValueError(spec)


def _bucket_skills(harness: Harness, spec: dict[str, Any]) -> R2SkillProvider:
    if harness.bucket is None:
        harness.bucket = Bucket()
    for key, entry in spec.get("objects", {}).items():
        harness.bucket.objects.setdefault(key, (entry["content"], entry.get("description")))
    options = {name: spec[name] for name in ("prefix", "keys") if name in spec}
    return R2SkillProvider(harness.bucket, **options)


class ReadOnly:
    def __init__(self, content: str | None) -> None:
        self.content = content

    async def get(self) -> str | None:
        return self.content


class Sequence:
    """The position is the harness's, so it survives a restart."""

    def __init__(self, harness: Harness, place: str, contents: list[str | None]) -> None:
        self.harness, self.place, self.contents = harness, place, contents

    async def get(self) -> str | None:
        position = self.harness.sequence_positions.get(self.place, 0)
        self.harness.sequence_positions[self.place] = position + 1
        return self.contents[min(position, len(self.contents) - 1)]


class Writable(ReadOnly):
    async def set(self, content: str) -> None:
        self.content = content


class WriteError(ReadOnly):
    def __init__(self, content: str | None, message: str) -> None:
        super().__init__(content)
        self.message = message

    async def set(self, content: str) -> None:
        raise RuntimeError(self.message)


class GetError:
    def __init__(self, message: str) -> None:
        self.message = message

    async def get(self) -> str | None:
        raise RuntimeError(self.message)


class InitLabel:
    label: str | None = None

    def init(self, label: str) -> None:
        self.label = label

    async def get(self) -> str:
        return f"label={self.label or 'null'}"


class Skills:
    def __init__(self, spec: dict[str, Any]) -> None:
        self.entries = {key: dict(entry) for key, entry in spec.get("entries", {}).items()}
        self.load_error = spec.get("load_error")

    async def get(self) -> str | None:
        lines = [
            f"- {key}: {entry['description']}" if entry.get("description") else f"- {key}"
            for key, entry in self.entries.items()
        ]
        return "\n".join(lines) if lines else None

    async def load(self, key: str) -> str | None:
        if self.load_error:
            raise RuntimeError(self.load_error)
        entry = self.entries.get(key)
        return None if entry is None else str(entry["content"])


class WritableSkills(Skills):
    async def set(self, key: str, content: str, description: str | None = None) -> None:
        self.entries[key] = {"content": content, "description": description}


class Search:
    def __init__(self, spec: dict[str, Any]) -> None:
        self.entries: dict[str, str] = dict(spec.get("entries", {}))
        self.search_error = spec.get("search_error")

    async def get(self) -> str | None:
        return f"{len(self.entries)} entries" if self.entries else None

    async def search(self, query: str) -> str | None:
        if self.search_error:
            raise RuntimeError(self.search_error)
        hits = [f"{key}={text}" for key, text in self.entries.items() if query.lower() in text.lower()]
        return ";".join(hits) or None


class WritableSearch(Search):
    async def set(self, key: str, content: str) -> None:
        self.entries[key] = content


class Bucket:
    """An object bucket in memory that lists its keys in lexicographic order."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[str, str | None]] = {}

    async def list(self, prefix: str) -> list[SkillEntry]:
        return [SkillEntry(key, self.objects[key][1]) for key in sorted(self.objects) if key.startswith(prefix)]

    async def get(self, key: str) -> str | None:
        entry = self.objects.get(key)
        return None if entry is None else entry[0]

    async def put(self, key: str, content: str, description: str | None) -> None:
        self.objects[key] = (content, description)


class MinimalProvider:
    """Only the mandatory methods of a session provider, handed on to the built-in one."""

    MANDATORY = (
        "get_message get_history get_latest_leaf get_branches get_path_length append_message update_message "
        "delete_messages clear_messages add_compaction get_compactions"
    ).split()

    def __init__(self, provider: AgentSessionProvider) -> None:
        for name in self.MANDATORY:
            setattr(self, name, getattr(provider, name))


def _text_length(message: dict[str, Any]) -> int:
    return sum(_utf16_length(part["text"]) for part in message["parts"] if part.get("type") == "text")


def _utf16_length(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
