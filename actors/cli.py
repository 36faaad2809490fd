"""`perdure`: the verbs, and what becomes of a mistake. One sentence on stderr and a non-zero exit, never a traceback."""

import importlib.metadata
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from actors.commands import demo, listing, loading, serve, watch
from storage.errors import StorageError

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

app.command()(serve.serve)
app.command()(serve.stop)
app.command()(demo.demo)
app.command()(watch.watch)
app.command("import")(loading.import_)
app.command()(listing.ls)
app.command()(listing.show)


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


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code: 0 done, 1 failed, 2 not understood, 130 interrupted."""
    try:
        result = app(list(arguments) or ["--help"], prog_name="perdure", standalone_mode=False)
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
            return _fail(f"{exc.format_message().rstrip('.')}. Try `perdure --help`.", 2)
        if "--traceback" in arguments:
            raise
        if isinstance(exc, OSError) and exc.strerror:
            return _fail(f"{exc.filename or 'The system'}: {exc.strerror}.", 1)
        return _fail(
            f"This should not have happened ({type(exc).__name__}: {exc}); `perdure --traceback ...` shows where.", 1
        )


def _fail(sentence: str, code: int) -> int:
    print("perdure: " + " ".join(sentence.split()), file=sys.stderr)
    return code


def main() -> None:
    sys.exit(run(sys.argv[1:]))
