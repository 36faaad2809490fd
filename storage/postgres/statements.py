"""SQL text: placeholders in every driver's style, and one statement that is a whole transaction.

Statements are written with ``?`` placeholders. Values never become part of the text, except in `block`, where they are base64.
"""

import base64
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, TypeAlias

import orjson

Value: TypeAlias = str | int | bool | None

LOCK_MILLISECONDS = 5000

_TOKEN: Final = re.compile(
    r"""[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "[^"]*" | --[^\n]* | /\*.*?\*/ | \$(\w*)\$.*?\$\1\$ | \? | %""",
    re.DOTALL | re.VERBOSE,
)


@cache
def numbered(statement: str) -> str:
    """With ``$1``, ``$2``, … for the placeholders."""
    count = 0

    def number() -> str:
        nonlocal count
        count += 1
        return f"${count}"

    return _replaced(statement, number, "%")


@cache
def formatted(statement: str) -> str:
    """With ``%s`` for the placeholders, as psycopg wants it."""
    return _replaced(statement, lambda: "%s", "%%")


def _replaced(statement: str, placeholder: Callable[[], str], percent: str) -> str:
    def replace(found: re.Match[str]) -> str:
        return placeholder() if found[0] == "?" else found[0].replace("%", percent)

    return _TOKEN.sub(replace, statement)


def block(lock: str, statement: str, args: Sequence[Value]) -> str:
    """One statement that takes a lock and then runs `statement`, which sees everything committed before it had the lock.

    A text in the column ``problem`` of its row ends it with the error ``perdure:<problem>``, and nothing is changed.
    """
    using = ", ".join(map(_literal, args))
    return f"""DO $perdure$ DECLARE problem text; BEGIN
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            RAISE EXCEPTION USING MESSAGE = 'perdure:isolation';
        END IF;
        PERFORM pg_advisory_xact_lock(hashtextextended({_literal(lock)}, 0));
        EXECUTE $statement${numbered(statement)}$statement$ INTO problem USING {using};
        IF problem IS NOT NULL THEN RAISE EXCEPTION USING MESSAGE = 'perdure:' || problem; END IF;
    END $perdure$"""


def loop(lock: str, statement: str, args: Sequence[Value], each: Sequence[str]) -> str:
    """`block` for a statement that has no row, run once for each text of `each`, its last argument, in this order."""
    using = ", ".join([*map(_literal, args), "given"])
    return f"""DO $perdure$ DECLARE given text; BEGIN
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            RAISE EXCEPTION USING MESSAGE = 'perdure:isolation';
        END IF;
        PERFORM pg_advisory_xact_lock(hashtextextended({_literal(lock)}, 0));
        FOR given IN SELECT value FROM json_array_elements_text(CAST({_literal(orjson.dumps(each).decode())} AS json)) LOOP
            EXECUTE $statement${numbered(statement)}$statement$ USING {using};
        END LOOP;
    END $perdure$"""


def definition(lock: str, body: str) -> str:
    """One statement that runs the statements of `body` under a lock, and waits for no table longer than `LOCK_MILLISECONDS`."""
    return f"""DO $perdure$ BEGIN
        PERFORM set_config('lock_timeout', '{LOCK_MILLISECONDS}', true);
        PERFORM pg_advisory_xact_lock(hashtextextended({_literal(lock)}, 0));
        {body}
    END $perdure$"""


def _literal(value: Value) -> str:
    if value is None:
        return "CAST(NULL AS text)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"CAST({value} AS bigint)"
    return f"convert_from(decode('{base64.b64encode(value.encode()).decode()}', 'base64'), 'UTF8')"
