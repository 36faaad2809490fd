"""The tools of a chat: those of the session, and the user's own, which may be plain functions."""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from actors.session.tools import Tool

Json: TypeAlias = dict[str, Any]


_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # others are refused by endpoints


class ChatTool(Protocol):
    """What a turn needs of a tool. `Tool` is one."""

    @property
    def name(self) -> str: ...
    def to_openai(self) -> Json: ...
    async def execute(self, input: Any) -> Any:
        """The answer: a text, or any JSON value. What it raises, and a text that begins with ``Error: ``, is a failure."""


class ToolFailed(Exception):
    """A call that a tool could not do; its text is for the model."""


class FunctionTool:
    """A function as a tool: its parameters are the schema, the first paragraph of its docstring is the description.

    Inputs are checked against the annotations. An ``async def`` runs on the loop, any other function in a thread.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.description = (inspect.getdoc(function) or "").partition("\n\n")[0].replace("\n", " ")
        self._function = function
        self._input = _input_model(name, function)

    @property
    def input_schema(self) -> Json:
        schema = self._input.model_json_schema()
        schema.pop("title", None)
        for value in schema.get("properties", {}).values():
            value.pop("title", None)
        return schema

    def to_openai(self) -> Json:
        function = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        return {"type": "function", "function": function}

    async def execute(self, input: Any) -> Any:
        try:
            checked = self._input.model_validate(input)
        except ValidationError as exc:
            raise ToolFailed(_mistake(exc)) from exc
        arguments = {name: getattr(checked, name) for name in type(checked).model_fields}
        if inspect.iscoroutinefunction(self._function):
            return await self._function(**arguments)
        answer = await asyncio.to_thread(self._in_thread, arguments)
        return await answer if isinstance(answer, Awaitable) else answer

    def _in_thread(self, arguments: Json) -> Any:
        try:
            return self._function(**arguments)
        except StopIteration as exc:  # no future takes one: it would be waited for in vain
            raise RuntimeError("StopIteration") from exc


def tools_of(given: Mapping[str, Any]) -> dict[str, ChatTool]:
    """What an agent's `tools` gave: `Tool` objects and functions, by name."""
    tools: dict[str, ChatTool] = {}
    for name, item in given.items():
        if not isinstance(item, Tool | FunctionTool) and not callable(item):
            raise TypeError(f"the tool {name!r} must be a function or a Tool, not {type(item).__name__}")
        tool = item if isinstance(item, Tool | FunctionTool) else FunctionTool(name, item)
        if not isinstance(tool.name, str) or not _NAME.fullmatch(tool.name):
            raise ValueError(f"the tool {tool.name!r} needs a name of 1 to 64 letters, digits, '_' and '-'")
        tools[tool.name] = tool
    return tools


def _input_model(name: str, function: Callable[..., Any]) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"the tool {name!r} may have only parameters that can be given by name")
        annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
        fields[parameter.name] = (annotation, ... if parameter.default is parameter.empty else parameter.default)
    config = ConfigDict(extra="forbid", protected_namespaces=(), arbitrary_types_allowed=False)
    return create_model(f"{name}_input", __config__=config, **fields)


def _mistake(error: ValidationError) -> str:
    """The first thing that is wrong with an input, for the model to do better."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"])) or "the input"
    return f"{where}: {first['msg']}"
