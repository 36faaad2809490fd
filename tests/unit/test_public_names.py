"""Every name that the specification exports is there, in Python's spelling, in the package that API.md names for its kind."""

import re
from pathlib import Path

import pytest

import actors
import actors.session
import compaction
import storage

SPECIFICATION = Path(__file__).parents[3] / "shared" / "spec" / "sessions.md"

WHERE = {
    actors: """
        Session SessionManager SessionOptions SessionManagerOptions SessionContextOptions
        ContextBlock ContextConfig ContextProvider WritableContextProvider SkillProvider SearchProvider
        SessionProvider SqlProvider
        is_writable_provider is_skill_provider is_search_provider
    """,
    storage: """
        AgentSessionProvider AgentContextProvider AgentSearchProvider R2SkillProvider
        PostgresSessionProvider PostgresContextProvider PostgresSearchProvider PostgresConnection
        SessionMessage SessionMessagePart SessionInfo SearchResult StoredCompaction
    """,
    compaction: """
        create_compact_function CompactResult CompactOptions is_compaction_message COMPACTION_PREFIX
        sanitize_tool_pairs align_boundary_forward align_boundary_backward find_tail_cut_by_tokens compute_summary_budget
        build_summary_prompt truncate_older_messages estimate_string_tokens estimate_message_tokens
    """,
}
NAMES = [(package, name) for package, names in WHERE.items() for name in names.split()]
PACKAGES = (actors, actors.session, compaction, storage)


@pytest.mark.parametrize(("package", "name"), NAMES, ids=lambda value: getattr(value, "__name__", value))
def test_a_documented_name_is_exported(package: object, name: str) -> None:
    assert name in package.__all__  # type: ignore[attr-defined]
    assert getattr(package, name) is not None


def test_every_name_in_all_exists_and_is_said_once() -> None:
    for package in PACKAGES:
        assert [name for name in package.__all__ if not hasattr(package, name)] == []
        assert len(set(package.__all__)) == len(package.__all__)


def test_what_sessions_offer_is_in_the_package_of_the_readme_too() -> None:
    assert [
        name for name in actors.session.__all__ if getattr(actors, name, None) is not getattr(actors.session, name)
    ] == []


def test_no_name_that_the_specification_imports_is_forgotten() -> None:
    if not SPECIFICATION.is_file():
        pytest.skip("the specification is not on this machine; the names of this file are a copy of its")
    text = SPECIFICATION.read_text(encoding="utf-8")
    sources = r"import \{([^}]*)\} from \"agents/experimental/memory/(?:session|utils/[\w-]+)\""
    documented = {
        python_name(name)
        for block in re.findall(sources, text)
        for name in re.findall(r"\w+", re.sub(r"//.*|\btype\b", "", block))
    }
    assert len(documented) > 35
    assert documented - {name for _, name in NAMES} == set()
    assert {name for _, name in NAMES} - documented == {
        "truncate_older_messages"
    }  # the spec has it in its vectors only


def python_name(name: str) -> str:
    """camelCase becomes snake_case; classes and constants stay."""
    return name if name[0].isupper() else re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
