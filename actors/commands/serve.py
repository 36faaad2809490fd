"""`perdure serve` and `perdure stop`: the only verbs that start or join Ray."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actors.commands.options import Config, Store
from actors.commands.target import DEFAULT_AGENT

if TYPE_CHECKING:
    from actors.settings import Settings

DEFAULT_PORT = 8787


def serve(
    agents: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODULE:CLASS", help="Agent classes to serve; without any, the default one, Conversation."
        ),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.  [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes any.  [default: 8787]")] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="This node's private folder, on a local disk.  [default: ./perdure-data]"),
    ] = None,
    store: Store = None,
    address: Annotated[
        str | None, typer.Option(metavar="RAY_ADDRESS", help="Join this Ray cluster instead of starting Ray here.")
    ] = None,
    compact_after: Annotated[
        int | None, typer.Option(metavar="N", help="Compact above this many tokens.  [default: 100000]")
    ] = None,
    idle_seconds: Annotated[
        float | None, typer.Option(metavar="S", help="Hibernate a conversation after this long.  [default: 30]")
    ] = None,
    max_awake: Annotated[
        int | None,
        typer.Option(metavar="N", help="Conversations awake at a time.  [default: 12 per core, 16 to 100]"),
    ] = None,
    spares: Annotated[
        int | None, typer.Option(metavar="N", help="Started actors that wait for a name.  [default: 2]")
    ] = None,
    recycle: Annotated[
        int | None,
        typer.Option(metavar="N", help="Conversations that an actor holds before it ends.  [default: 1000]"),
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="A web origin that may connect; repeat for more.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The model of summaries and of actors:ChatAgent.  [default: none]"),
    ] = None,
    model_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where that model is: an OpenAI-compatible address.  [default: https://api.openai.com/v1]",
        ),
    ] = None,
    model_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file with its key, unless PERDURE_MODEL_KEY has it.")
    ] = None,
    config: Config = None,
) -> int:
    """Serve conversations until SIGTERM or SIGINT; then everything hibernates."""
    flags = {
        "agents": agents,
        "host": host,
        "port": port,
        "data": data,
        "store": store,
        "address": address,
        "compact_after": compact_after,
        "idle_seconds": idle_seconds,
        "max_awake": max_awake,
        "spares": spares,
        "recycle": recycle,
        "allow_origin": allow_origin,
        "model": model,
        "model_url": model_url,
        "model_key_file": model_key_file,
    }
    settings = _settings(flags, config)
    if settings.model:
        from actors.models import check_package

        check_package()
    from actors.cluster import start
    from actors.commands.terminal import say
    from actors.gateway.origins import check_bind

    check_bind(settings.host)
    say("starting; this takes a few seconds ...")
    return start.serve(settings, _announce_listening if settings.address else partial(_announce, settings))


def stop(
    address: Annotated[
        str | None, typer.Option("--address", metavar="RAY_ADDRESS", help="The Ray cluster to stop serving on.")
    ] = None,
    config: Config = None,
) -> int:
    """Drain and stop the servers of a Ray cluster (those started with --address)."""
    settings = _settings({"address": address}, config)
    from actors.cluster import start
    from actors.errors import BadSetting

    if not settings.address:
        raise BadSetting("--address", "should name the Ray cluster; a server without one ends with Ctrl-C or SIGTERM.")
    return start.stop(settings.address)


def _settings(flags: dict[str, Any], config: Path | None) -> "Settings":
    from actors.commands.terminal import say
    from actors.settings import load_settings, unknown_variables

    settings = load_settings(flags, config)
    for sentence in unknown_variables():
        say(sentence)
    return settings


def _announce_listening(host: str, port: int, agents: Sequence[str]) -> None:
    host = f"[{host}]" if ":" in host else host
    print(f"perdure: listening on ws://{host}:{port}", flush=True)


def _announce(settings: "Settings", host: str, port: int, agents: Sequence[str]) -> None:
    """The one line for programs on stdout, what to do next for people on stderr."""
    _announce_listening(host, port, agents)
    url = "" if port == DEFAULT_PORT else f" --url ws://{host}:{port}"
    place = _place(settings)
    served = "Serving " + ", ".join(f"/agents/{agent}/NAME" for agent in agents)
    demo = {f"demo{url}{place}": "a minute: gauge, compaction, sleep, wake"} if DEFAULT_AGENT in agents else {}
    hints = {
        **demo,
        f"watch{url}{place}": "live token usage",
        f"ls{place}": "the conversations; `show NAME` prints one",
    }
    commands = {f"{_own_name()} {verb}": what for verb, what in hints.items()}
    width = max(map(len, commands))
    if 2 + width + 3 + max(map(len, hints.values())) <= 80:
        lines = [f"  {command.ljust(width)}   {what}" for command, what in commands.items()]
    else:
        lines = [line for command, what in commands.items() for line in (f"  # {what}", f"  {command}")]
    ending = f"Logs: {settings.data}. Ctrl-C puts every conversation to sleep and ends."
    print("\n".join([served, "", "Try in another terminal:", *lines, ending]), file=sys.stderr, flush=True)


def _place(settings: "Settings") -> str:
    """The options with which another verb finds what this server keeps."""
    place = "" if settings.data == Path("perdure-data").absolute() else f" --data {shlex.quote(str(settings.data))}"
    return place if settings.store == str(settings.data / "store") else f" --store {shlex.quote(settings.store)}"


def _own_name() -> str:
    """How this program was called, so that the next command can be copied (`make serve` leaves it off the PATH)."""
    path = Path(sys.argv[0])
    if shutil.which(path.name) == str(path):
        return path.name
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
