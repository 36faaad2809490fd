"""What is said at once of arguments that are of the wrong kind."""

import math
from typing import Any, TypeGuard

from storage.errors import InvalidArgument


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def finite(value: float) -> float | None:
    """A number as a float; None for NaN, infinities, and what is too large for one."""
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def check_whole(least: int | None = None, **numbers: Any) -> None:
    """Raise InvalidArgument for the first that is no whole number of at least ``least``."""
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
            raise InvalidArgument(f"{name} must be a whole number{'' if least is None else f' of at least {least}'}.")


def check_number(least: float | None = None, **numbers: Any) -> None:
    """Raise InvalidArgument for the first that is no number of at least ``least``."""
    for name, value in numbers.items():
        if not is_number(value) or math.isnan(value) or (least is not None and value < least):
            raise InvalidArgument(f"{name} must be a number{'' if least is None else f' of at least {least}'}.")
