"""A writer process for the fault tests: appends rows in groups and prints each one's number once it is confirmed.

Arguments: store, work folder, first number. Ends by itself only when it is fenced (prints "fenced", exit 3).
"""

import asyncio
import os
import sqlite3
import sys
from pathlib import Path

from storage.checkpoints import ConversationKey, StorageOptions, close_conversation, open_conversation, open_store
from storage.errors import Fenced

KEY = ConversationKey("conversation", "contended")
OPTIONS = StorageOptions(snapshot_slots=20, retention_seconds=0)
CLIENTS = 4


def migrate(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS t(id TEXT PRIMARY KEY, v TEXT)")


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


async def main(store: str, work: str, name: str) -> int:
    opened = await open_conversation(open_store(store), KEY, Path(work), prepare=migrate, options=OPTIONS)
    say(f"epoch {opened.epoch}")

    async def client(number: int) -> None:
        for step in range(1_000_000):
            row = f"{name}-{number}-{step:06d}"
            await opened.database.write(
                lambda c, row=row: c.execute("INSERT INTO t VALUES(?, ?)", (row, "x" * 300)).rowcount
            )
            say(row)

    try:
        await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    except Fenced:
        say("fenced")
        await close_conversation(opened)
        return 3
    return 0


if __name__ == "__main__":
    os._exit(asyncio.run(main(*sys.argv[1:4])))
