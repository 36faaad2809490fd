"""R2SkillProvider: documents that a model loads on demand, kept in a folder or an object-store bucket.

A bucket is whatever has `list`, `get` and `put` as in `SkillBucket`. A folder keeps each document in a file of its own and its
description beside it; an obstore store keeps the description in the object's metadata (``description``).
"""

import asyncio
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import obstore
from obstore.store import ObjectStore

from storage.errors import InvalidArgument
from storage.records import clean

_DESCRIPTION: Final = ".description"


@dataclass(frozen=True, slots=True)
class SkillEntry:
    key: str
    description: str | None = None


@runtime_checkable
class SkillBucket(Protocol):
    """Where skills are kept. Keys are full keys, with the prefix."""

    async def list(self, prefix: str) -> "Sequence[SkillEntry]":
        """The entries whose key begins with `prefix`, in the order of keys."""

    async def get(self, key: str) -> str | None:
        """The content; None if there is no such key."""

    async def put(self, key: str, content: str, description: str | None) -> None:
        """Write one document, in place of an earlier one."""


class R2SkillProvider:
    """`bucket`: a folder, an obstore store, or anything with the methods of `SkillBucket`.

    `keys`, if given and not empty, restricts what is listed and loaded to these keys (without the prefix).
    """

    def __init__(
        self,
        bucket: "SkillBucket | ObjectStore | str | os.PathLike[str]",
        *,
        prefix: str = "",
        keys: Iterable[str] | None = None,
    ) -> None:
        self._bucket = _bucket_of(bucket)
        self._prefix = clean(prefix)
        self._keys = frozenset(keys or ())

    async def get(self) -> str | None:
        """A line ``- key: description`` for each skill; None if there are none."""
        entries = await self._bucket.list(self._prefix)
        lines = []
        for entry in entries:
            key = entry.key.removeprefix(self._prefix)
            if self._is_offered(key):
                lines.append(f"- {key}: {entry.description}" if entry.description else f"- {key}")
        return "\n".join(lines) or None

    async def load(self, key: str) -> str | None:
        """The document; None if there is none or it is not offered."""
        key = clean(key)
        return await self._bucket.get(self._prefix + key) if self._is_offered(key) else None

    async def set(self, key: str, content: str, description: str | None = None) -> None:
        """Write one document."""
        await self._bucket.put(self._prefix + clean(key), clean(content), description and clean(description))

    def _is_offered(self, key: str) -> bool:
        return bool(key) and (not self._keys or key in self._keys)


class FolderBucket:
    """A folder of files. Keys are relative paths; one that would leave the folder names nothing."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)

    async def list(self, prefix: str) -> Sequence[SkillEntry]:
        return await asyncio.to_thread(self._list, prefix)

    async def get(self, key: str) -> str | None:
        return await asyncio.to_thread(self._get, key)

    async def put(self, key: str, content: str, description: str | None) -> None:
        await asyncio.to_thread(self._put, key, content, description)

    def _list(self, prefix: str) -> Sequence[SkillEntry]:
        keys = (path.relative_to(self._folder).as_posix() for path in self._folder.rglob("*") if path.is_file())
        chosen = sorted(key for key in keys if key.startswith(prefix) and self._path(key) is not None)
        return [SkillEntry(key, self._description(key)) for key in chosen]

    def _get(self, key: str) -> str | None:
        path = self._path(key)
        return path.read_bytes().decode("utf-8", "replace") if path is not None and path.is_file() else None

    def _put(self, key: str, content: str, description: str | None) -> None:
        path = self._path(key)
        if path is None:
            raise InvalidArgument(f"{key!r} is not a key of this folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, content)
        beside = path.with_name(f".{path.name}{_DESCRIPTION}")
        if description:
            _replace(beside, description)
        else:
            beside.unlink(missing_ok=True)

    def _description(self, key: str) -> str | None:
        path = self._folder / key
        beside = path.with_name(f".{path.name}{_DESCRIPTION}")
        return beside.read_text("utf-8", "replace").strip() if beside.is_file() else None

    def _path(self, key: str) -> Path | None:
        """The file of a key; None for what is no key or leads out of the folder."""
        if not _is_key(key):
            return None
        path = self._folder / key
        return path if path.resolve().is_relative_to(self._folder.resolve()) else None


class ObjectStoreBucket:
    """A bucket of an obstore store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def list(self, prefix: str) -> Sequence[SkillEntry]:
        # the store lists by whole path segments; the rest of the prefix is ours
        folder = prefix.rpartition("/")[0]
        keys: list[str] = []
        async for batch in obstore.list(self._store, folder or None):
            keys += (entry["path"] for entry in batch if entry["path"].startswith(prefix))
        heads = await asyncio.gather(*(obstore.get_async(self._store, key) for key in sorted(keys)))
        return [SkillEntry(key, _described(head.attributes)) for key, head in zip(sorted(keys), heads, strict=True)]

    async def get(self, key: str) -> str | None:
        if not _is_key(key):
            return None
        try:
            found = await obstore.get_async(self._store, key)
        except FileNotFoundError:
            return None
        return bytes(await found.bytes_async()).decode("utf-8", "replace")

    async def put(self, key: str, content: str, description: str | None) -> None:
        if not _is_key(key):
            raise InvalidArgument(f"{key!r} is not a key of a bucket")
        attributes: dict[str, str] = {"description": description} if description else {}
        try:
            await obstore.put_async(self._store, key, content.encode(), attributes=attributes)
        except NotImplementedError as exc:
            raise InvalidArgument("this store keeps no metadata; give its folder instead") from exc


def _bucket_of(bucket: Any) -> SkillBucket:
    if isinstance(bucket, (str, os.PathLike)):
        return FolderBucket(bucket)
    if isinstance(bucket, SkillBucket) and not type(bucket).__module__.startswith("obstore"):
        return bucket
    if hasattr(bucket, "put_async") or type(bucket).__module__.startswith("obstore"):
        return ObjectStoreBucket(bucket)
    raise InvalidArgument(f"a folder, an obstore store or an object with list, get and put is needed, not {bucket!r}")


def _is_key(key: str) -> bool:
    """Whether a key is a plain relative path: no part is empty or begins with a dot, so none can lead elsewhere."""
    parts = key.split("/")
    return not re.search(r"[\0\\]", key) and all(part and not part.startswith(".") for part in parts)


def _described(attributes: Any) -> str | None:
    description = attributes.get("description")
    return str(description) if description else None


def _replace(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old or the new text, never a part."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(text.encode())
    temporary.replace(path)
