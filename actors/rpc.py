"""Which methods of an agent clients may call, and how JSON arguments become Python ones.

The wire has positional JSON arguments only (PROTOCOL.md section 5). They are bound in the order of the method's parameters:

* a missing argument is "not given": the parameter's default holds;
* ``null`` is ``None`` where the annotation allows it, else "not given";
* an object where a plain value (text, number, boolean) is expected is an options object: its camelCase keys are the
  parameters from there on; an unknown key is refused;
* surplus arguments are ignored.
"""

import inspect
import re
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, overload

from storage.errors import InvalidArgument

Verb = Literal["read", "append", "edit", "delete", "admin"]
VERBS: tuple[Verb, ...] = ("read", "append", "edit", "delete", "admin")

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__perdure_rpc__"
_PLAIN: dict[type, str] = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_KINDS: dict[type, str] = {**_PLAIN, list: "a list", dict: "an object"}


def camel_case(name: str) -> str:
    """``get_latest_leaf`` -> ``getLatestLeaf``."""
    return re.sub(r"_([a-z0-9])", lambda match: match.group(1).upper(), name)


@dataclass(frozen=True, slots=True)
class _Mark:
    name: str | None
    verb: Verb
    is_streaming: bool
    is_single: bool


@dataclass(frozen=True, slots=True)
class _Parameter:
    name: str
    kind: type | None  # one of _KINDS, None = anything
    allows_none: bool
    is_required: bool


@dataclass(frozen=True, slots=True)
class RpcMethod:
    """One callable method of an agent class."""

    name: str  # on the wire
    attribute: str  # on the agent
    verb: Verb
    is_streaming: bool
    is_single: bool  # all it writes is one operation: if that was not executed, the call was not
    returns_nothing: bool  # annotated ``-> None`` or not at all: the answer has no result
    parameters: tuple[_Parameter, ...]

    def bind(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """Keyword arguments for the method. Raises InvalidArgument with one sentence that names the argument."""
        bound: dict[str, Any] = {}
        for index, parameter in enumerate(self.parameters):
            if index >= len(arguments):
                break
            value = arguments[index]
            if isinstance(value, dict) and parameter.kind in _PLAIN:
                self._bind_options(value, self.parameters[index:], bound)
                break
            self._bind_one(parameter, value, bound)
        for parameter in self.parameters:
            if parameter.is_required and parameter.name not in bound:
                raise InvalidArgument(f"{self.name} needs the argument {camel_case(parameter.name)!r}.")
        return bound

    def _bind_options(self, options: dict[str, Any], allowed: Sequence[_Parameter], bound: dict[str, Any]) -> None:
        by_key = {camel_case(parameter.name): parameter for parameter in allowed}
        for key, value in options.items():
            if key not in by_key:
                raise InvalidArgument(f"{self.name} has no option {key!r}; it has {', '.join(sorted(by_key))}.")
            self._bind_one(by_key[key], value, bound)

    def _bind_one(self, parameter: _Parameter, value: Any, bound: dict[str, Any]) -> None:
        if value is None and not parameter.allows_none:
            return
        if value is not None and parameter.kind is not None and not _fits(value, parameter.kind):
            raise InvalidArgument(f"{self.name}: {camel_case(parameter.name)!r} must be {_KINDS[parameter.kind]}.")
        bound[parameter.name] = value


def _fits(value: Any, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return (isinstance(value, int) and not isinstance(value, bool)) or (
            isinstance(value, float) and value == value // 1
        )
    return isinstance(value, kind)


@overload
def rpc(method: F, /) -> F: ...
@overload
def rpc(
    *, name: str | None = None, verb: Verb = "edit", streaming: bool = False, single: bool = False
) -> Callable[[F], F]: ...
def rpc(
    method: F | None = None,
    /,
    *,
    name: str | None = None,
    verb: Verb = "edit",
    streaming: bool = False,
    single: bool = False,
) -> F | Callable[[F], F]:
    """Offer an async method of an `Agent` to clients.

    ``name``: on the wire (default: the method's name in camelCase; the Python name works too). ``verb``: what `authorize`
    must grant. ``streaming``: the first parameter is a `Stream`. ``single``: the method is one storage operation, so a call
    whose operation was certainly not executed may be run again by the next owner without asking the client.
    """
    if verb not in VERBS:
        raise ValueError(f"unknown verb {verb!r}; the verbs are {', '.join(VERBS)}")
    if single and streaming:
        raise ValueError("a streaming method cannot be run again once chunks of it have been sent: it is not single")

    def mark(function: F) -> F:
        setattr(function, _MARK, _Mark(name, verb, streaming, single))
        return function

    return mark if method is None else mark(method)


def rpc_methods(agent_class: type) -> dict[str, RpcMethod]:
    """Wire name -> method, for all methods of the class that are marked with `rpc`, inherited ones included."""
    found: dict[str, RpcMethod] = {}
    aliases: dict[str, RpcMethod] = {}
    for attribute, function in inspect.getmembers(agent_class, inspect.isfunction):
        mark: _Mark | None = getattr(function, _MARK, None)
        if mark is None:
            continue
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{agent_class.__name__}.{attribute} must be `async def` to be offered with @rpc")
        method = RpcMethod(
            mark.name or camel_case(attribute),
            attribute,
            mark.verb,
            mark.is_streaming,
            mark.is_single,
            function.__annotations__.get("return") in (None, "None"),
            _parameters(function, skip=2 if mark.is_streaming else 1),
        )
        found[method.name] = method
        aliases[attribute] = method
    return {**aliases, **found}


def _parameters(function: Callable[..., Any], skip: int) -> tuple[_Parameter, ...]:
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # an annotation that only a type checker can read
        hints = {}
    parameters = []
    for name, parameter in list(inspect.signature(function).parameters.items())[skip:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        kind, allows_none = _kind(hints.get(name))
        parameters.append(_Parameter(name, kind, allows_none, parameter.default is parameter.empty))
    return tuple(parameters)


def _kind(annotation: Any) -> tuple[type | None, bool]:
    if annotation is None or annotation is Any:
        return None, True
    members = (
        typing.get_args(annotation)
        if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
        else (annotation,)
    )
    allows_none = type(None) in members
    kinds = {typing.get_origin(member) or member for member in members if member is not type(None)}
    if len(kinds) == 1:
        (kind,) = kinds
        if kind in _KINDS:
            return kind, allows_none
    return None, allows_none or bool(kinds - set(_KINDS))
