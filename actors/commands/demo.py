"""`perdure demo`: a small conversation played into a running server, with what there is to see said line by line."""

import asyncio
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actors.commands.options import DEFAULT_URL, Config, Data, Store, Token, Url
from actors.commands.target import DEFAULT_AGENT, Server, require_listener, server

if TYPE_CHECKING:
    from rich.console import Console

    from actors.client import Client, Status
    from actors.settings import Settings

GRACE_SECONDS = 20.0
"""How much longer than ``idle_seconds`` the demo waits to see in the store that the conversation sleeps."""


def demo(
    url: Url = DEFAULT_URL,
    token: Token = None,
    data: Data = None,
    store: Store = None,
    config: Config = None,
    pause: Annotated[float, typer.Option("--pause", metavar="S", min=0, help="Seconds between two messages.")] = 0.5,
) -> int:
    """Play a small conversation into a running server: token gauge, compaction, hibernation and wake, in a minute."""
    from actors.settings import load_settings

    target = server(url, token)
    settings = load_settings({"data": data, "store": store}, config)
    return asyncio.run(_play(target, settings, pause))


@dataclass(slots=True)
class Gauge:
    """The newest status of the conversation, kept up to date by a task of its own."""

    status: "Status | None" = None
    compactions: int = 0

    async def follow(self, chat: "Client") -> None:
        async for status in chat.status():
            self.status = status
            self.compactions += status.tokens_before is not None

    @property
    def tokens(self) -> int:
        return self.status.token_estimate if self.status else 0


async def _play(target: Server, settings: "Settings", pause: float) -> int:
    from actors.client import Client
    from actors.commands.terminal import console

    await require_listener(target)
    name = f"demo-{secrets.token_hex(3)}"
    out = console()
    out.print(f"{name} on {target.url}: somebody plans a birthday picnic.")
    async with Client(target.url, DEFAULT_AGENT, name, token=target.token) as chat:
        gauge = Gauge()
        following = asyncio.create_task(gauge.follow(chat))
        try:
            await _talk(chat, gauge, name, out, pause)
            await _compact(chat, gauge, out)
            before = await chat.get_history()
            await _sleep(name, settings, out)
            is_whole = await _wake(chat, before, out)
        finally:
            following.cancel()
    out.print(f"\nNext: `perdure show {name}`, `perdure watch`, `perdure ls`.")
    return 0 if is_whole else 1


async def _talk(chat: "Client", gauge: Gauge, name: str, out: "Console", pause: float) -> None:
    from rich.text import Text

    from actors.commands.gauge import bar
    from actors.commands.sample import messages

    lines = messages(name)
    full = _scale(lines)
    out.print(f"The gauge is full at {full:,} tokens, for this small conversation only.\n")
    for message in lines:
        await chat.append_message(message)
        text: str = message["parts"][0]["text"]
        tokens = gauge.tokens
        out.print(
            Text(f"{message['role']:>9}  {_shortened(text)}  "),
            bar(tokens, full, 12),
            Text(f"{tokens:6,} tokens"),
            sep="",
        )
        await asyncio.sleep(pause)


def _scale(lines: list[dict[str, Any]]) -> int:
    """What a full bar stands for here: about all of this conversation, not the server's threshold of many times that."""
    characters = sum(len(message["parts"][0]["text"]) for message in lines)
    return -(-characters // 1500) * 500  # a third of the characters, up to the next 500


def _shortened(text: str, width: int = 40) -> str:
    return (text if len(text) <= width else text[: width - 3].rstrip() + "...").ljust(width)


async def _compact(chat: "Client", gauge: Gauge, out: "Console") -> None:
    """The threshold of a server is far above this small conversation, so the demo asks for the compaction itself."""
    threshold = gauge.status.token_threshold if gauge.status else None
    if gauge.compactions:
        out.print(f"\nAbove {threshold:,} tokens the server compacted by itself: {gauge.tokens:,} tokens now.")
        return
    before = gauge.tokens
    if threshold:
        out.print(f"\nThe server compacts by itself above {threshold:,} tokens; now we ask for it.")
    result = await chat.compact()
    if result is None:
        out.print("compact(): there was nothing to fold.")
        return
    out.print(f"compact(): {before:,} -> {gauge.tokens:,} tokens. Every message is still stored;")
    out.print(f"when the history is read, a summary stands for {result['fromMessageId']}")
    out.print(f"to {result['toMessageId']}.")
    out.print("(This gauge counts the system prompt too; `ls` and `show` count the messages only.)")


async def _sleep(name: str, settings: "Settings", out: "Console") -> None:
    """Waits until the store says that the conversation sleeps; where it cannot be read, as long as that should take."""
    from rich.live import Live
    from rich.text import Text

    from actors.inspection import is_asleep

    out.print(f"\nNow nobody says anything. After {settings.idle_seconds:g} s of that it goes to sleep.")
    begun = time.monotonic()
    asleep: bool | None = None
    with Live(console=out, auto_refresh=False, transient=True) as live:
        while (waited := time.monotonic() - begun) < settings.idle_seconds + GRACE_SECONDS:
            asleep = await asyncio.to_thread(is_asleep, settings.store, DEFAULT_AGENT, name)
            if asleep or (asleep is None and waited > settings.idle_seconds + 2):
                break
            live.update(Text(f"  {max(0.0, settings.idle_seconds - waited):3.0f} s ..."), refresh=True)
            await asyncio.sleep(0.2)
    if asleep:
        out.print("Asleep: all of it is in the store, and its process serves others.")
        out.print("Our connection is still open.")
    elif asleep is None:
        out.print("It should be asleep now. To make sure, say where the store is (--data, --store);")
        out.print(f"it is not at {settings.store}")
    else:
        out.print(
            "It is still awake: the server's idle time is longer than we know of\n(--config, PERDURE_IDLE_SECONDS)."
        )


async def _wake(chat: "Client", before: list[dict[str, Any]], out: "Console") -> bool:
    begun = time.perf_counter()
    after = await chat.get_history()
    milliseconds = (time.perf_counter() - begun) * 1000
    begun = time.perf_counter()
    await chat.get_history()
    again = (time.perf_counter() - begun) * 1000
    if after != before:
        out.print("\nAwake, but the history is not the one from before. That is a fault of Perdure.")
        return False
    out.print(f"\nA read on the same socket woke it: {milliseconds:.1f} ms, restoring it included.")
    out.print(f"The same read again, awake: {again:.1f} ms. All {len(after)} entries are as they were.")
    return True
