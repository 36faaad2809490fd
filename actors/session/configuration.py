"""What builder methods and constructors say of a session: looked at in one place, before anything is used or stored.

Each value of the wrong kind is one InvalidArgument with one sentence that names it.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Self

from actors.session.blocks import ContextConfig
from actors.session.provider_checks import article, check_prompt_store, check_provider, parameters, takes
from actors.session.providers import TextProvider
from compaction import CompactFunction, TokenCounter
from compaction.checks import is_number
from storage.errors import InvalidArgument, shown
from storage.records import clean

log = logging.getLogger("perdure.session")

MOST_TOKENS: Final = 2**53
"""No estimate comes near it: a limit above it is none."""

_WIRE_NAMES: Final = {"maxTokens": "max_tokens"}
_BLOCK_OPTIONS: Final = [option.name for option in fields(ContextConfig)]


@dataclass(slots=True)
class Configuration:
    """How a session is set up. ``prompt_store`` None with ``has_cached_prompt``: the prompt is kept in the owner's database."""

    blocks: list[ContextConfig] = field(default_factory=list)
    has_cached_prompt: bool = False
    prompt_store: Any = None
    compaction: CompactFunction | None = None
    threshold: float | None = None
    token_counter: TokenCounter | None = None
    on_compaction_error: Callable[[Exception], Any] | None = None

    def __post_init__(self) -> None:
        given, self.blocks = self.blocks, []
        for block in given:
            self.add(block)

    def add(self, block: ContextConfig) -> None:
        """One more block. A label that is there already is no error, as recorded; more likely than not it is a mistake."""
        if any(block is not other and block.label == other.label for other in self.blocks):
            log.warning("two context blocks have the label %s; the later one counts", shown(block.label))
        self.blocks.append(block)

    def copy(self) -> Self:
        copied = replace(self, blocks=[])
        copied.blocks = list(self.blocks)
        return copied


class Configurable:
    """The builder methods of a session; those of a manager are for every session of it. They come before the first use.

    Raises InvalidArgument for what is of the wrong kind.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration

    def with_context(
        self,
        label: str,
        *,
        description: str | None = None,
        max_tokens: float | None = None,
        provider: Any = None,
    ) -> Self:
        """Add a context block. ``provider``: an object with ``get`` (and ``set``, ``load``, ``search``), or a fixed text.

        Without one, each session has a row of its own in the database. A provider object given to a manager is one for all
        sessions. ``max_tokens``: `math.inf` is no limit; below 0 nothing fits. Of two blocks of one label the later counts,
        which is logged.
        """
        self._refuse_once_used()
        self._configuration.add(block_config(ContextConfig(label, description, max_tokens, provider)))
        return self

    def with_cached_prompt(self, provider: Any = None) -> Self:
        """Keep the frozen prompt where it survives this object: in the database, or in a provider with get and set."""
        self._refuse_once_used()
        if provider is not None:
            check_prompt_store(provider)
        self._configuration.has_cached_prompt = True
        self._configuration.prompt_store = provider
        return self

    def on_compaction(self, function: CompactFunction) -> Self:
        """Register the function that folds messages: ``function(messages[, context])``, async or not."""
        self._refuse_once_used()
        self._configuration.compaction = checked_function(function)
        return self

    def compact_after(self, threshold: float, *, token_counter: TokenCounter | None = None) -> Self:
        """Compact by itself when an append leaves the estimate above `threshold`. Needs `on_compaction`.

        `math.inf` means never; so does anything above 2**53. ``token_counter(messages=…, system_prompt=…, context_blocks=…)``
        replaces the heuristic.
        """
        self._refuse_once_used()
        above = checked_threshold(threshold)
        if token_counter is not None:
            self._configuration.token_counter = checked_counter(token_counter)
        self._configuration.threshold = above
        return self

    def on_compaction_error(self, handler: Callable[[Exception], Any]) -> Self:
        """Be told of errors of automatic compaction. What the handler raises is logged and goes no further."""
        self._refuse_once_used()
        self._configuration.on_compaction_error = checked_handler(handler)
        return self

    def _refuse_once_used(self) -> None:
        raise NotImplementedError


def block_configs(context: Iterable[ContextConfig | Mapping[str, Any]]) -> list[ContextConfig]:
    if isinstance(context, str | bytes | Mapping) or not isinstance(context, Iterable):
        raise InvalidArgument(f"context must be a list of context blocks, not {article(context)}.")
    return [block_config(item) for item in context]


def block_config(item: ContextConfig | Mapping[str, Any]) -> ContextConfig:
    if isinstance(item, Mapping):
        item = _from_options(item)
    if not isinstance(item, ContextConfig):
        raise InvalidArgument(f"A context block is a ContextConfig or an object of its options, not {article(item)}.")
    label = checked_label(item.label)
    of = f"of the context block {shown(label)}"
    if item.description is not None and not isinstance(item.description, str):
        raise InvalidArgument(f"The description {of} must be a text, not {article(item.description)}.")
    limit = item.max_tokens
    if limit is not None and (not is_number(limit) or limit != limit):
        raise InvalidArgument(f"max_tokens {of} must be a number, not {_shown(limit)}.")
    provider = TextProvider(item.provider) if isinstance(item.provider, str) else item.provider
    if provider is not None:
        check_provider(provider, of)
    description = None if item.description is None else clean(item.description)
    return ContextConfig(label, description, None if limit is None or limit > MOST_TOKENS else limit, provider)


def checked_label(label: Any) -> str:
    if not isinstance(label, str) or not label:
        raise InvalidArgument("The label of a context block must be a text that is not empty.")
    return clean(label)


def checked_threshold(value: Any) -> float | None:
    """None: never."""
    if not is_number(value) or not value >= 0:
        raise InvalidArgument(
            f"The threshold of compact_after must be a number of tokens of at least 0 (math.inf: never), not {_shown(value)}."
        )
    return None if value > MOST_TOKENS else value


def checked_function(function: Any) -> CompactFunction:
    if not callable(function) or not (takes(function, None) or takes(function, None, None)):
        raise InvalidArgument("The compaction function must be one that takes (messages) or (messages, context).")
    if parameters(function) == ["prompt"]:
        raise InvalidArgument(
            "This compaction function takes a prompt, so it is a summarizer: give create_compact_function(summarize=…) of it."
        )
    return function  # type: ignore[no-any-return]


def checked_counter(counter: Any) -> TokenCounter:
    if not callable(counter) or not takes(counter, messages=None, system_prompt=None, context_blocks=None):
        raise InvalidArgument("token_counter must be a function that takes (messages, system_prompt, context_blocks).")
    return counter  # type: ignore[no-any-return]


def checked_handler(handler: Any) -> Callable[[Exception], Any]:
    if not callable(handler) or not takes(handler, None):
        raise InvalidArgument("The handler of compaction errors must be a function that takes (error).")
    return handler  # type: ignore[no-any-return]


def _from_options(options: Mapping[Any, Any]) -> ContextConfig:
    named = {_WIRE_NAMES.get(name, name): value for name, value in options.items()}
    unknown = [name for name in named if name not in _BLOCK_OPTIONS]
    if unknown or "label" not in named:
        names = ", ".join(map(shown, unknown[:5])) or "no label"
        raise InvalidArgument(f"A context block has a label, description, max_tokens and provider, not {names}.")
    return ContextConfig(**named)


def _shown(value: Any) -> str:
    return str(float(value)) if is_number(value) and abs(value) <= MOST_TOKENS else article(value)
