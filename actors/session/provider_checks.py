"""Whether an object can be a provider: what is half of one is refused where it is given, with a sentence that says why."""

import inspect
from typing import Any, Final

from actors.session.providers import SESSION_METHODS, is_keyed_provider, is_writable_provider
from storage.errors import InvalidArgument

_ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "get": (),
    "set": ("content",),
    "load": ("key",),
    "search": ("query",),
    "init": ("label",),
}
SET_BLOCK: Final = ("content",)
SET_SKILL: Final = ("key", "content", "description")
SET_ENTRY: Final = ("key", "content")


def check_provider(provider: object, of: str) -> None:
    """Refuse what cannot be the provider `of` something: without ``get``, half of a kind, a class. Raises InvalidArgument."""
    _refuse_class(provider, of)
    present = [name for name in _ARGUMENTS if getattr(provider, name, None) is not None]
    if not present:
        raise InvalidArgument(
            f"{_said(of)} has none of a provider's methods (get, set, load, search), but is {article(provider)}."
        )
    uncallable = [name for name in present if not callable(getattr(provider, name))]
    if uncallable:
        raise InvalidArgument(f"{_said(of)} must have {_listed(uncallable)} as a method, not as a value.")
    if "get" not in present:
        raise InvalidArgument(f"{_said(of)} has {_listed(present)} but no get: every provider has that.")
    for name in present:
        arguments = _ARGUMENTS[name]
        if name == "set":
            arguments = SET_SKILL if "load" in present else SET_ENTRY if "search" in present else SET_BLOCK
        if not takes(getattr(provider, name), *arguments):
            raise InvalidArgument(f"{_said(of)} must take {name}({', '.join(arguments)}).")


def check_prompt_store(store: object) -> None:
    """Refuse what cannot keep a prompt: it needs get and set of one text. Raises InvalidArgument."""
    check_provider(store, "of the cached prompt")
    if not is_writable_provider(store) or is_keyed_provider(store):
        raise InvalidArgument("The provider of the cached prompt needs get and set of one text, and no load or search.")


def missing_methods(provider: object) -> list[str]:
    """The mandatory methods of a `SessionProvider` that an object does not have."""
    return [name for name in SESSION_METHODS if not callable(getattr(provider, name, None))]


def check_session_provider(provider: object) -> None:
    """Refuse what cannot store messages, and name the methods that it lacks. Raises InvalidArgument."""
    if isinstance(provider, type):
        raise InvalidArgument(f"{provider.__name__} is a class; give the session an object of it.")
    missing = missing_methods(provider)
    if missing:
        raise InvalidArgument(f"A session provider needs {_listed(missing)}; {article(provider)} lacks that.")


def text_of(value: object, provider_of: str) -> str | None:
    """What a provider gave, if it is a text or None. Raises InvalidArgument."""
    if value is not None and not isinstance(value, str):
        raise InvalidArgument(f"{_said(provider_of)} gave {article(value)}, not a text.")
    return value


def _refuse_class(provider: object, of: str) -> None:
    if isinstance(provider, type):
        raise InvalidArgument(f"{_said(of)} is the class {provider.__name__}; give an object of it.")


def takes(function: Any, *arguments: Any, **named: Any) -> bool:
    """Whether a function can be called so; yes where Python cannot tell."""
    try:
        inspect.signature(function).bind(*arguments, **named)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def parameters(function: Any) -> list[str]:
    """The names of a function's parameters; none where Python cannot tell."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _said(of: str) -> str:
    return f"The provider {of}"


def _listed(names: list[str]) -> str:
    return " and ".join((", ".join(names[:-1]), names[-1]) if len(names) > 1 else names)


def article(value: object) -> str:
    """What kind of thing it is, with its article."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
