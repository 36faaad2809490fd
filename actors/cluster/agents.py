"""The agent classes that a server was told to serve, imported where they are needed."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from actors.agent import Agent, kebab
from actors.chat.agent import ChatAgent
from actors.cluster.errors import CannotStart
from actors.settings import Settings

_DEFAULT = "actors.default_agent:Conversation"


def append_module_folder(folder: Path | str) -> None:
    """Make a user's own modules importable, behind everything that is installed: they cannot hide ours."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def load_class(reference: str) -> Any:
    """``MODULE:CLASS`` imported. Raises `CannotStart` with one sentence, whatever the module's own code raised."""
    module_name, _, class_name = reference.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (module_name == exc.name or module_name.startswith(exc.name + ".")):
            raise CannotStart(f"There is no module {exc.name!r} here or among the installed packages.") from exc
        raise CannotStart(f"The module {module_name!r} cannot be imported: {exc}.") from exc
    except Exception as exc:
        raise CannotStart(f"The module {module_name!r} cannot be imported: {type(exc).__name__}: {exc}") from exc
    try:
        return getattr(module, class_name)
    except AttributeError as exc:
        raise CannotStart(f"The module {module_name!r} has no class {class_name!r}.") from exc


def load_agents(references: tuple[str, ...], folder: Path | str) -> dict[str, type[Agent]]:
    """Agent classes by the kebab name in their URLs; without references the default agent."""
    append_module_folder(folder)
    agents: dict[str, type[Agent]] = {}
    for reference in references or (_DEFAULT,):
        found = load_class(reference)
        if not (isinstance(found, type) and issubclass(found, Agent)):
            raise CannotStart(f"{reference} is not a subclass of actors.Agent.")
        name = kebab(found.__name__)
        if agents.setdefault(name, found) is not found:
            raise CannotStart(f"Two agents would be served as {name!r}: rename one of the classes {found.__name__}.")
    return agents


def unready(agents: Mapping[str, type[Agent]], settings: Settings) -> Iterator[str]:
    """A sentence for each agent that will refuse what it is for, as the server is configured."""
    for name, agent in agents.items():
        has_own_model = getattr(agent, "chat_model", None) is not ChatAgent.chat_model
        if issubclass(agent, ChatAgent) and not settings.model and not has_own_model:
            yield f"{name} has no model, so its chats will be refused; give --model NAME, and --model-url unless it is OpenAI's."
