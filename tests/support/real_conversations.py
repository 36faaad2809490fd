"""Where the real conversations are, which are beside this repository and not in it."""

from pathlib import Path

DATA = Path(__file__).parents[3] / "shared" / "data" / "airline-support.openai-chat.jsonl"
MISSING = "nothing was tested with the real conversations: ../shared/data is not beside this repository"
