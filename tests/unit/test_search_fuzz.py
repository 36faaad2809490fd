"""Random queries: none raises, none returns the text of another session.

50,000; it prints how many found something, and the seed (TESTS_SEED repeats a run).
"""

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from session_support import opened, text

from actors.session import Session, SessionManager
from storage import AgentSearchProvider, open_database
from storage.search_words import match_expression

COUNT = 50_000
AT_ONCE = 200

WORDS = """deployment friday server logs errors database ticket POL-358 pol 358 café naïve Straße Привет שלום مرحبا
東京タワー 京都 北京 烤鸭 한국어 ﾊﾝｶｸ が 🎉 🚀 👍🏽 👨‍👩‍👧‍👦 🇯🇵 ©️ ❤️ a I x1 v1.2.3 foo_bar C++ user@example.org""".split()
SYNTAX = """AND OR NOT NEAR NEAR( NEAR(a,5) content: {content}: - -- + ^ * : ( ) () { } [ ] " "" \' \\ / ; , . | & ~ ? % _ # =
rank rowid assistant_fts MATCH UNION SELECT DROP content:x "a" ^a a* a+b {a b}:c (a OR b) a""b""".split(" ")
CHARACTERS = (
    "\0\x01\x08\t\n\r\x1b\x7f\x85\xa0\xad\u0300\u0301\u061c\u1112\u1161\u11ab\u180e\u200b\u200d\u200e\u2028\u2029\u202e"
    "\u3000\u3099\ufe0f\ufeff\ufffd\uffff\ud800\udbff\udc00\udfff\ue000\U000e0001\U000f0000\U000f4389\U0010ffff\"'*^:(){}"
)


def random_query(dice: random.Random) -> str:
    """Words, syntax of FTS5, odd characters and any others; short as a rule, now and then very long."""

    def piece() -> str:
        kind = dice.random()
        if kind < 0.35:
            return dice.choice(WORDS)
        if kind < 0.6:
            return dice.choice(SYNTAX)
        if kind < 0.8:
            return "".join(dice.choice(CHARACTERS) for _ in range(dice.randint(1, 4)))
        if kind < 0.9:
            return chr(dice.choice((dice.randrange(0x80), dice.randrange(0x3000, 0xA000), dice.randrange(0x110000))))
        return dice.choice(WORDS)[: dice.randint(1, 4)] + dice.choice(("*", '"', "-", "\0", ""))

    length = dice.choice((0, 1, 1, 2, 2, 2, 3, 3, 4, 6, 10))
    if dice.random() < 0.002:
        length = dice.randint(100, 2_000)
    joint = dice.choice((" ", " ", " ", "", '"', "\0", "\u3000"))
    return joint.join(piece() for _ in range(length)) * (1 if dice.random() > 0.001 else 500)


@pytest.fixture
def seed() -> int:
    number = int(os.environ.get("TESTS_SEED") or random.randrange(2**32))
    print(f"\nTESTS_SEED={number}")
    return number


async def test_no_query_raises_or_returns_what_is_anothers(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    async with opened(tmp_path) as owner:
        (tmp_path / "other").mkdir()
        other = await open_database(tmp_path / "other" / "conversation.db")
        manager = SessionManager.create(owner)
        sessions = {name: manager.get_session((await manager.create(name)).id) for name in ("mine", "yours")}
        searches = {name: AgentSearchProvider(owner, "kb", session_id=name) for name in ("mine", "yours")}
        for name, session in sessions.items():
            for number in range(40):
                content = " ".join(dice.sample(WORDS, 6)) + f"\0 of {name}"
                await session.append_message(text(f"{name}-{number}", content))
                await searches[name].set(f"{name}-{number}", content)
                await Session.create(other).append_message(text(f"foreign-{name}-{number}", content))

        mine, entries = sessions["mine"], searches["mine"]
        found = dict.fromkeys(("session", "entries", "manager"), 0)

        async def ask(query: str) -> None:
            try:
                results: list[Any] = await mine.search(query)
                listing = await entries.search(query) or ""
                everywhere: list[Any] = await manager.search(query)
            except Exception as exc:
                raise AssertionError(f"the query {query!r} raised {exc!r}") from exc
            assert [item["id"] for item in results if not item["id"].startswith("mine-")] == [], query
            assert "of yours" not in listing, query
            assert [item["id"] for item in everywhere if item["id"].startswith("foreign")] == [], query
            assert {item["id"] for item in results} <= {item["id"] for item in everywhere} or len(everywhere) == 20, (
                query
            )
            found["session"] += bool(results)
            found["entries"] += bool(listing)
            found["manager"] += bool(everywhere)

        began, asked = time.monotonic(), 0
        while asked < COUNT:
            await asyncio.gather(*(ask(random_query(dice)) for _ in range(AT_ONCE)))
            asked += AT_ONCE
        print(f"{asked:,} queries in {time.monotonic() - began:.1f} s; with results: {found}")
        assert min(found.values()) > asked // 20
        assert manager.failed_searches == 0
        assert (await manager.search("of foreign")) == []
        assert len(await mine.search("deployment", 1_000)) > 0
        await other.close()


@pytest.mark.parametrize(
    "query", [" ".join(f"w{number}" for number in range(20_000)), "x" * 4_000_000, '"' * 1_000_000, "東" * 200_000]
)
async def test_a_huge_query_is_answered(tmp_path: Path, query: str) -> None:
    async with opened(tmp_path) as owner:
        session = Session.create(owner)
        await session.append_message(text("m1", "text"))
        assert await session.search(query) == []
        provider = AgentSearchProvider(owner, "kb")
        await provider.set("k", "text")
        assert await provider.search(query) is None


def test_every_random_query_becomes_quoted_words(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(3_000):
        expression = match_expression(random_query(dice))
        if expression is not None:
            outside = expression.replace('""', "").split('"')[::2]
            assert {part.strip() for part in outside} == {""}
