"""All settings, with their defaults: DESIGN.md section 6. Built once by `cli.py` and passed down.

Precedence: flag, then ``PERDURE_*`` variable, then the TOML file of ``--config``, then the default here.
"""

import os
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource


def _default_max_awake() -> int:
    return min(100, max(16, 12 * (os.cpu_count() or 1)))


class Settings(BaseSettings):
    """Frozen; durations end in their unit, sizes are bytes."""

    model_config = SettingsConfigDict(env_prefix="PERDURE_", frozen=True, extra="forbid", toml_file=None)

    # where
    host: str = "127.0.0.1"
    port: int = Field(8787, ge=0, le=65535)
    data: Path = Path("perdure-data")
    store: str = ""  # "" = DATA/store
    address: str = ""  # "" = start Ray here
    agents: tuple[str, ...] = ()  # MODULE:CLASS; none = the default Conversation
    allow_origin: tuple[str, ...] = ()

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

    @model_validator(mode="before")
    @classmethod
    def _absolute(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Paths are made absolute where they are given, since the actors run in another folder."""
        data = Path(values.get("data") or "perdure-data").expanduser().absolute()
        values["data"] = data
        store = str(values.get("store") or "")
        if not store:
            values["store"] = str(data / "store")
        elif "://" not in store:
            values["store"] = str(Path(store).expanduser().absolute())
        return values

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings, env_settings, TomlConfigSettingsSource(settings_cls))
