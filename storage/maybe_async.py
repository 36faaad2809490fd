"""Calls that may be async or not."""

import inspect
from collections.abc import Awaitable
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
MaybeAwaitable: TypeAlias = T | Awaitable[T]


async def settle(value: Any) -> Any:
    """The value of a call that may be async; does not yield to the loop if it was not."""
    return await value if inspect.isawaitable(value) else value
