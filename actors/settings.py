"""All settings, with their defaults: DESIGN.md section 6. Built once by `cli.py` and passed down.

Precedence: flag, then ``PERDURE_*`` variable, then the TOML file of ``--config``, then the default here.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from actors.errors import BadSetting


def _default_max_awake() -> int:
    return min(100, max(16, 12 * (os.cpu_count() or 1)))


class Settings(BaseSettings):
    """Frozen; durations end in their unit, sizes are bytes."""

    model_config = SettingsConfigDict(
        env_prefix="PERDURE_", frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )

    # where
    host: str = "127.0.0.1"
    port: int = Field(8787, ge=0, le=65535)
    data: Path = Path("perdure-data")
    store: str = ""  # "" = DATA/store
    address: str = ""  # "" = start Ray here
    # NoDecode: in a variable these are words, not JSON
    agents: Annotated[tuple[str, ...], NoDecode] = ()  # MODULE:CLASS; none = the default Conversation
    allow_origin: Annotated[tuple[str, ...], NoDecode] = ()

    # conversations
    compact_after: int = Field(100_000, ge=1)
    idle_seconds: float = Field(30.0, gt=0)
    max_awake: int = Field(default_factory=_default_max_awake, ge=1)
    spares: int = Field(2, ge=0)
    recycle: int = Field(1_000, ge=1)
    quantum_seconds: float = Field(0.100, ge=0)
    linger_seconds: float = Field(0.010, ge=0)
    hang_seconds: float = Field(4.0, gt=0)
    wake_seconds: float = Field(10.0, gt=0)
    drain_seconds: float = Field(20.0, gt=0)
    start_seconds: float = Field(60.0, gt=0)
    call_seconds: float = Field(600.0, gt=0)  # a running call or stream is ended after this

    # the model of summaries and of ChatAgent: any endpoint that speaks OpenAI's chat completions
    model: str = ""  # its name there; "" = no model
    model_url: str = ""  # up to and with /v1; "" = OpenAI's own
    model_key: SecretStr = SecretStr("")  # "" = the endpoint needs none
    model_key_file: Path | None = None  # read once, at the start
    model_seconds: float = Field(120.0, gt=0)  # a model that says nothing new for so long has failed
    model_answer_seconds: float = Field(600.0, gt=0)  # a whole answer may take so long, tries that failed included
    model_retries: int = Field(2, ge=0)  # of a request that was refused for now, or not answered at all

    # store
    store_deadline_seconds: float = Field(10.0, gt=0)
    stale_read_seconds: float = Field(60.0, ge=0)
    retention_seconds: float = Field(86_400.0, ge=0)
    snapshot_bytes: int = Field(4 * 1024 * 1024, ge=1)
    snapshot_slots: int = Field(256, ge=1)

    # limits
    max_message_bytes: int = Field(8 * 1024 * 1024, ge=1024)
    max_name_bytes: int = Field(512, ge=1)
    max_queued_operations: int = Field(1_000, ge=1)
    max_queued_bytes: int = Field(8 * 1024 * 1024, ge=1)
    max_in_flight: int = Field(64, ge=1)  # requests in flight per socket
    max_send_buffer_bytes: int = Field(4 * 1024 * 1024, ge=1)
    max_waiting_wakes: int = Field(1_000, ge=1)
    max_conversation_bytes: int = Field(1024**3, ge=1)
    max_messages: int = Field(1_000_000, ge=1)
    max_blocks: int = Field(256, ge=1)
    max_warm_bytes: int = Field(2 * 1024**3, ge=0)  # local files of sleeping conversations, per node

    @field_validator("agents", "allow_origin", mode="before")
    @classmethod
    def _words(cls, value: object) -> object:
        """A variable holds several words with spaces or commas between them."""
        return (
            tuple(re.split(r"[\s,]+", value.strip(" ,")))
            if isinstance(value, str) and value.strip(" ,")
            else value or ()
        )

    @field_validator("agents")
    @classmethod
    def _module_and_class(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for agent in value:
            if not all(part.isidentifier() for part in agent.replace(":", ".", 1).split(".")) or ":" not in agent:
                raise ValueError(f"{agent!r} should be MODULE:CLASS, for example my_module:Assistant")
        return value

    @field_validator("model_url")
    @classmethod
    def _address(cls, value: str) -> str:
        """The address goes into logs and errors, so it holds no secret."""
        try:
            address = urlsplit(value)
            is_bare = not (address.username or address.password or address.query or address.fragment)
            is_usable = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
        except ValueError:  # a port or an IPv6 address that is none
            is_bare, is_usable = True, False
        if value and not is_bare:
            raise ValueError("should be an address alone; the key belongs into PERDURE_MODEL_KEY or --model-key-file")
        if value and not is_usable:
            raise ValueError("should be an http or https address, for example http://127.0.0.1:11434/v1")
        return value.rstrip("/")

    @field_validator("model_key")
    @classmethod
    def _one_word(cls, value: SecretStr) -> SecretStr:
        """What cannot go into a header must fail here, since a client's own error would show it."""
        if not all("!" <= character <= "~" for character in value.get_secret_value()):
            raise ValueError("should be one word of ASCII characters")
        return value

    @model_validator(mode="before")
    @classmethod
    def _absolute(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Paths are made absolute where they are given, since the actors run in another folder."""
        for name in ("data", "store"):
            if not isinstance(values.get(name) or "", (str, Path)):
                raise ValueError(f"{name} should be the path of a folder")
        data = Path(values.get("data") or "perdure-data").expanduser().absolute()
        values["data"] = data
        store = str(values.get("store") or "")
        if not store:
            values["store"] = str(data / "store")
        elif "://" not in store:
            values["store"] = str(Path(store).expanduser().absolute())
        return values

    def with_secrets(self) -> dict[str, Any]:
        """Plain JSON values that make the same settings in another process. They hold the model's key: for pipes only."""
        return {**self.model_dump(mode="json"), "model_key": self.model_key.get_secret_value()}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings, env_settings)


def load_settings(flags: Mapping[str, Any], config: Path | None = None) -> Settings:
    """The settings of one command; ``flags`` that are None or empty were not given. Raises `BadSetting`."""
    given = {name: value for name, value in flags.items() if value is not None and value != () and value != []}
    file = _read_toml(config) if config is not None else {}
    try:
        variables = EnvSettingsSource(Settings)()
        settings = Settings(**_merged(file, variables, given))
    except SettingsError as exc:
        raise BadSetting("The environment", f"cannot be read: {exc}.") from exc
    except ValidationError as exc:
        error = exc.errors()[0]
        name = str(error["loc"][0]) if error["loc"] else ""
        raise BadSetting(_where(name, given, variables, config), _what(error)) from None if name == "model_key" else exc
    if settings.model_url and not settings.model:
        raise BadSetting("--model", f"is missing: name the model to use at {settings.model_url}.")
    return settings


_KEYS = ("model_key", "model_key_file")


def _merged(*levels: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the levels, the last wins; a key wins over a key file of an earlier level, and the other way round."""
    values: dict[str, Any] = {}
    for level in levels:
        if not level.keys().isdisjoint(_KEYS):
            values |= {"model_key": "", "model_key_file": None}
        values |= level
    path = values.get("model_key_file")
    if path and values["model_key"]:
        raise BadSetting(
            "The model's key", "is given twice: by model_key and by model_key_file; leave one of them out."
        )
    if path:
        values["model_key"] = _read_key(Path(str(path)))
    return values


def _read_key(path: Path) -> str:
    try:
        key = path.expanduser().read_text("utf-8").strip()
    except OSError as exc:
        raise BadSetting(f"--model-key-file {path}:", f"the file cannot be read ({exc.strerror}).") from exc
    except UnicodeDecodeError:
        key = ""
    if not key or any(not "!" <= character <= "~" for character in key):
        raise BadSetting(f"--model-key-file {path}:", "the file should hold the key, one word, and nothing else.")
    return key


def unknown_variables() -> list[str]:
    """A sentence for each ``PERDURE_*`` variable that no setting reads: a misspelt one would be ignored in silence."""
    prefix = "PERDURE_"
    known = [prefix + name.upper() for name in Settings.model_fields]
    others = {"PERDURE_URL", "PERDURE_TOKEN"}  # read by the verbs that speak to a server
    sentences = []
    for name in sorted(os.environ):
        if name.startswith(prefix) and name not in known and name not in others:
            close = difflib.get_close_matches(name, known, n=1)
            sentences.append(f"{name} is not a setting and is ignored" + (f"; is {close[0]} meant?" if close else "."))
    return sentences


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as exc:
        raise BadSetting(f"--config {path}:", f"the file cannot be read ({exc.strerror}).") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise BadSetting(f"--config {path}:", f"this is not TOML ({exc}).") from exc
    values = {name.replace("-", "_"): value for name, value in values.items()}
    for name in values:
        if name not in Settings.model_fields:
            close = difflib.get_close_matches(name, Settings.model_fields, n=1)
            raise BadSetting(
                f"--config {path}:", f"there is no setting {name!r}" + (f"; is {close[0]!r} meant?" if close else ".")
            )
    return values


def _where(name: str, given: Mapping[str, Any], variables: Mapping[str, Any], config: Path | None) -> str:
    if name in given:
        return "MODULE:CLASS" if name == "agents" else "--" + name.replace("_", "-")
    if name in variables:
        return "PERDURE_" + name.upper()
    return f"--config {config}: {name}"


def _what(error: Any) -> str:
    message = (
        str(error["msg"])
        .removeprefix("Value error, ")
        .replace("Input should", "should", 1)
        .replace("valid tuple", "list")
    )
    message = re.sub(r", unable to parse.*", "", message)
    hides_input = error["type"] == "value_error" or error["loc"] == ("model_key",)
    return f"{message}." if hides_input else f"{message}, not {error['input']!r}."
