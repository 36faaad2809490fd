"""`perdure`: the verbs, and what becomes of a mistake. One sentence on stderr and a non-zero exit, never a traceback."""

import importlib.metadata
import os
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from actors.commands import demo, listing, loading, serve, watch
from storage.errors import StorageError

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

app.command(short_help="Serve conversations until SIGTERM or SIGINT.")(serve.serve)
app.command(short_help="Stop the servers started with --address.")(serve.stop)
app.command(short_help="Play a small conversation into a running server.")(demo.demo)
app.command(short_help="Show live token usage.")(watch.watch)
app.command("import", short_help="Load conversations from a file of lines.")(loading.import_)
app.command(short_help="List the conversations of the store.")(listing.ls)
app.command(short_help="Print one conversation.")(listing.show)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"perdure {importlib.metadata.version('perdure')}")
        raise typer.Exit


@app.callback()
def options(
    traceback: Annotated[
        bool, typer.Option("--traceback", help="On an unexpected failure, show where it was.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Durable AI conversations: one actor and one SQLite file each, asleep when idle, back in milliseconds."""


def command() -> Any:
    """All verbs. Their helps name arguments without the Python types that typer adds."""
    group: Any = typer.main.get_command(app)
    for verb in group.commands.values():
        for parameter in verb.params:
            if parameter.param_type_name == "argument":
                parameter.display_type_rich = lambda ctx: None
    return group


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code: 0 done, 1 failed, 2 not understood, 130 interrupted."""
    try:
        result = command()(list(arguments) or ["--help"], prog_name="perdure", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        # The reader (`| head`) has gone; what is left in the buffer must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except StorageError as exc:
        return _fail(str(exc), 1)
    except Exception as exc:
        if hasattr(exc, "format_message"):  # typer's own errors about the words of the command line
            return _fail(_mistake(exc), 2)
        if "--traceback" in arguments:
            raise
        if isinstance(exc, OSError) and exc.strerror:
            return _fail(f"{exc.filename or 'The system'}: {exc.strerror}.", 1)
        return _fail(
            f"This should not have happened ({type(exc).__name__}: {exc}); `perdure --traceback ...` shows where.", 1
        )


def _mistake(error: Any) -> str:
    """A mistake in the words of the command line, in plain words, and which help to read."""
    text = error.format_message().strip().replace("Value error, ", "").replace("Input should", "it should")
    text = re.sub(r", unable to parse[^.]*", "", text)
    verb = error.ctx.command_path if getattr(error, "ctx", None) else "perdure"
    return f"{text if text.endswith(('.', '?')) else text + '.'} Try `{verb} --help`."


def _fail(sentence: str, code: int) -> int:
    print("perdure: " + " ".join(sentence.split()), file=sys.stderr)
    return code


def main() -> None:
    sys.exit(run(sys.argv[1:]))
