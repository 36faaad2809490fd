"""A token gauge as text: a bar against the threshold, and numbers."""

from rich.text import Text


def bar(tokens: int, limit: int | None, width: int = 24) -> Text:
    """Green, yellow from 80 %, red from 100 %. Without a limit there is nothing to measure against."""
    if not limit:
        return Text("·" * width, style="dim")
    share = tokens / limit
    filled = min(width, max(1 if tokens > 0 else 0, round(share * width)))
    style = "red" if share >= 1 else "yellow" if share >= 0.8 else "green"
    return Text("█" * filled, style=style) + Text("░" * (width - filled), style="dim")


def numbers(tokens: int, limit: int | None) -> str:
    return f"{tokens:,} of {limit:,}" if limit else f"{tokens:,}"
