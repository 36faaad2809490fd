"""Every name of the specification's Exports section is there, in Python's spelling."""

import re
from pathlib import Path

import pytest

import actors
import actors.session
import compaction
import storage

SPECIFICATION = Path(__file__).parents[3] / "shared" / "spec" / "sessions.md"

NAMES = """
Session SessionManager AgentSessionProvider AgentContextProvider AgentSearchProvider R2SkillProvider
is_writable_provider is_skill_provider is_search_provider
SessionMessage SessionMessagePart SessionContextOptions SessionInfo SessionOptions SessionManagerOptions
ContextBlock ContextConfig
ContextProvider WritableContextProvider SkillProvider SearchProvider SearchResult SessionProvider StoredCompaction SqlProvider
PostgresSessionProvider PostgresContextProvider PostgresSearchProvider PostgresConnection
is_compaction_message COMPACTION_PREFIX CompactResult CompactOptions create_compact_function sanitize_tool_pairs
estimate_string_tokens estimate_message_tokens
""".split()


def is_public(name: str) -> bool:
    return any(name in module.__all__ for module in (actors, actors.session, compaction, storage))


@pytest.mark.parametrize("name", NAMES)
def test_a_documented_name_is_exported(name: str) -> None:
    assert is_public(name)


def test_every_name_in_all_exists() -> None:
    for module in (actors, actors.session, compaction, storage):
        assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_no_name_of_the_exports_section_is_forgotten() -> None:
    if not SPECIFICATION.is_file():
        pytest.skip("the specification is not on this machine")
    section = SPECIFICATION.read_text(encoding="utf-8").partition("\n## Exports\n")[2].partition("\n## ")[0]
    documented = {
        python_name(name)
        for block in re.findall(r"import \{(.*?)\} from", section, re.DOTALL)
        for name in re.findall(r"\w+", re.sub(r"//.*|\btype\b", "", block))
    }
    assert documented == set(NAMES)


def python_name(name: str) -> str:
    """camelCase becomes snake_case; classes and constants stay."""
    return name if name[0].isupper() else re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
