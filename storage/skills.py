"""R2SkillProvider: documents that a model loads on demand, kept in a folder or in an S3-compatible bucket.

A bucket is whatever has `list`, `get` and `put` as in `SkillBucket`. A folder keeps each document in a file of its own and its
description beside it. A bucket keeps the description in the object's metadata (``description``), as RFC 2047 writes what is not
plain ASCII: HTTP headers carry nothing else, and R2 shows it decoded.
"""

import asyncio
import builtins
import errno
import os
import re
import stat
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from email.errors import HeaderParseError
from email.header import Header, decode_header, make_header
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import LocalStore, ObjectStore, S3Store

from storage.errors import InvalidArgument, LimitExceeded, LocalDiskFailed, SkillsRefused, SkillsUnavailable, shown
from storage.records import clean

T = TypeVar("T")

MAX_BYTES: Final = 8 * 1024 * 1024
"""The largest document: what is loaded becomes part of a message."""

MAX_DESCRIPTION: Final = 1_500
"""The most bytes of a description, as it is written: S3 has room for 2 KB of metadata."""

TIMEOUT_SECONDS: Final = 15
"""After so long an operation on a bucket is given up."""

AT_ONCE: Final = 16
"""So many descriptions are asked for at the same time."""

_DESCRIPTION: Final = ".description"
_CLIENT: Final = {"timeout": "10s", "connect_timeout": "3s"}
_RETRIES: Final = {"max_retries": 3, "retry_timeout": timedelta(seconds=10)}


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
    """`bucket`: a folder, ``s3://bucket``, an obstore store, or anything with the methods of `SkillBucket`.

    `keys`, if given and not empty, restricts what is listed and loaded to these keys (without the prefix). `config` has the
    options of an ``s3://`` bucket by obstore's names (``endpoint``, ``region``, ``access_key_id``, ``secret_access_key``, …);
    what it leaves out comes from the usual ``AWS_*`` variables. Nothing is read before the first call.
    Calls raise SkillsUnavailable (in seconds), SkillsRefused, LocalDiskFailed, and InvalidArgument for what cannot be a key.
    """

    def __init__(
        self,
        bucket: "SkillBucket | ObjectStore | str | os.PathLike[str]",
        *,
        prefix: str = "",
        keys: Iterable[str] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(prefix, str) or isinstance(keys, str) or not isinstance(keys, Iterable | None):
            raise InvalidArgument("a prefix must be a text, and keys a list of texts")
        wanted = list(keys or ())
        if not all(isinstance(key, str) for key in wanted):
            raise InvalidArgument("the keys of skills must be texts")
        if config is not None and not isinstance(config, Mapping):
            raise InvalidArgument(f"config must be an object of options, not {shown(config)}")
        self._prefix = clean(prefix)
        self._keys = frozenset(wanted)
        self._bucket = _bucket_of(bucket, config, frozenset(self._prefix + key for key in self._keys))

    async def get(self) -> str | None:
        """A line ``- key: description`` for each skill, in the order of keys; None if there are none."""
        entries = await self._bucket.list(self._prefix)
        lines = []
        for entry in entries:
            key = entry.key.removeprefix(self._prefix)
            if self._is_offered(key):
                description = _one_line(entry.description)
                lines.append(f"- {key}: {description}" if description else f"- {key}")
        return "\n".join(lines) or None

    async def load(self, key: str) -> str | None:
        """The document; None if there is none or it is not offered."""
        if not isinstance(key, str):
            raise InvalidArgument(f"the key of a skill must be a text, not {shown(key)}")
        key = clean(key)
        return await self._bucket.get(self._prefix + key) if self._is_offered(key) else None

    async def set(self, key: str, content: str, description: str | None = None) -> None:
        """Write one document, with its description (None or empty: without one)."""
        if not isinstance(key, str) or not isinstance(content, str) or not isinstance(description, str | None):
            raise InvalidArgument("the key, the content and the description of a skill must be texts")
        content = clean(content)
        if len(content.encode()) > MAX_BYTES:
            raise LimitExceeded(f"The document {shown(key)}", f"{MAX_BYTES:,} bytes")
        await self._bucket.put(self._prefix + clean(key), content, _one_line(description))

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
        try:
            keys = [path.relative_to(self._folder).as_posix() for path in self._folder.rglob("*") if path.is_file()]
            chosen = sorted(key for key in keys if key.startswith(prefix) and self._path(key) is not None)
            return [SkillEntry(key, self._description(key)) for key in chosen]
        except OSError as exc:
            raise LocalDiskFailed(exc.strerror) from exc

    def _get(self, key: str) -> str | None:
        path = self._path(key)
        try:
            if path is None or not stat.S_ISREG((found := path.stat()).st_mode):
                return None
            _check_document(key, found.st_size)
            return path.read_bytes().decode("utf-8", "replace")
        except OSError as exc:
            if _names_nothing(exc):
                return None
            raise LocalDiskFailed(exc.strerror) from exc

    def _put(self, key: str, content: str, description: str | None) -> None:
        path = self._path(key)
        if path is None:
            raise InvalidArgument(f"{shown(key)} is not a key of this folder")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, content)
            beside = path.with_name(f".{path.name}{_DESCRIPTION}")
            if description:
                _replace(beside, description)
            else:
                beside.unlink(missing_ok=True)
        except OSError as exc:
            if _names_nothing(exc) or exc.errno in (errno.EEXIST, errno.EISDIR):
                raise InvalidArgument(f"{shown(key)} cannot be kept in this folder ({exc.strerror})") from exc
            raise LocalDiskFailed(exc.strerror) from exc

    def _description(self, key: str) -> str | None:
        path = self._folder / key
        beside = path.with_name(f".{path.name}{_DESCRIPTION}")
        return beside.read_text("utf-8", "replace").strip() if beside.is_file() else None

    def _path(self, key: str) -> Path | None:
        """The file of a key; None for what is no key or leads out of the folder."""
        if not _is_key(key):
            return None
        path = self._folder / key
        try:
            return path if path.resolve().is_relative_to(self._folder.resolve()) else None
        except (OSError, RuntimeError):  # a name too long, or links in a ring
            return None


class ObjectStoreBucket:
    """A bucket of an obstore store. `wanted`, if not empty: the only keys that are ever listed."""

    def __init__(self, store: ObjectStore, wanted: frozenset[str] = frozenset(), *, name: str = "the bucket") -> None:
        self._store = store
        self._wanted = wanted
        self._name = name

    async def list(self, prefix: str) -> Sequence[SkillEntry]:
        keys = await self._bounded(lambda: self._keys(prefix))
        at_once = asyncio.Semaphore(AT_ONCE)

        async def entry(key: str) -> SkillEntry | None:
            async with at_once:
                try:
                    head = await obstore.get_async(self._store, key, options={"head": True})
                except FileNotFoundError:  # it went since it was listed
                    return None
            return SkillEntry(key, _decoded(head.attributes.get("description")))

        entries = await self._bounded(lambda: asyncio.gather(*map(entry, keys)))
        return [found for found in entries if found is not None]

    async def get(self, key: str) -> str | None:
        async def read() -> bytes | None:
            try:
                found = await obstore.get_async(self._store, key)
            except FileNotFoundError:
                return None
            _check_document(key, found.meta["size"])
            return bytes(await found.bytes_async())

        content = await self._bounded(read) if _is_key(key) else None
        return None if content is None else content.decode("utf-8", "replace")

    async def put(self, key: str, content: str, description: str | None) -> None:
        if not _is_key(key):
            raise InvalidArgument(f"{shown(key)} is not a key of a bucket")
        written = _encoded(description) if description else ""
        if len(written) > MAX_DESCRIPTION:
            raise LimitExceeded("The description of a skill", f"{MAX_DESCRIPTION:,} bytes")
        attributes = {"description": written} if written else {}
        await self._bounded(lambda: obstore.put_async(self._store, key, content.encode(), attributes=attributes))

    async def _keys(self, prefix: str) -> "builtins.list[str]":
        # the store lists by whole path segments; the rest of the prefix is ours
        folder = prefix.rpartition("/")[0]
        keys: list[str] = []
        async for batch in obstore.list(self._store, folder or None):
            keys += (entry["path"] for entry in batch)
        return sorted(
            key for key in keys if key.startswith(prefix) and _is_key(key) and (not self._wanted or key in self._wanted)
        )

    async def _bounded(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of a call, in time, or an error of ours."""
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return await call()
        except TimeoutError as exc:
            raise SkillsUnavailable(self._name, f"waited {TIMEOUT_SECONDS} seconds") from exc
        except (PermissionDeniedError, UnauthenticatedError) as exc:
            raise SkillsRefused(self._name, "access denied") from exc
        except FileNotFoundError as exc:
            raise SkillsRefused(self._name, "it does not exist") from exc
        except NotImplementedError as exc:
            raise InvalidArgument("this store keeps no metadata; give its folder instead") from exc
        except (BaseError, OSError) as exc:
            if "NoSuchBucket" in str(exc):  # a listing that fails has no class of its own for these
                raise SkillsRefused(self._name, "it does not exist") from exc
            if re.search("status code: 40[13]", str(exc)):
                raise SkillsRefused(self._name, "access denied") from exc
            raise SkillsUnavailable(self._name, re.split(r"\n|: <", str(exc))[0].strip()) from exc


def _bucket_of(bucket: Any, config: Mapping[str, Any] | None, wanted: frozenset[str]) -> SkillBucket:
    if isinstance(bucket, str) and bucket.lower().startswith("s3://"):
        return ObjectStoreBucket(s3_store(bucket, config), wanted, name=bucket)
    if config is not None:
        raise InvalidArgument("config is for s3:// buckets; an obstore store is configured where it is made")
    if isinstance(bucket, str) and re.match(r"[a-z][a-z0-9+.-]+://", bucket, re.IGNORECASE):
        raise InvalidArgument(
            f"a folder or s3://BUCKET is needed, not {shown(bucket)}; make an obstore store for others"
        )
    if isinstance(bucket, LocalStore) and bucket.prefix is not None:
        return FolderBucket(bucket.prefix)  # the store itself would keep no descriptions
    if isinstance(bucket, (str, os.PathLike)):
        return FolderBucket(bucket)
    if isinstance(bucket, type):
        raise InvalidArgument(f"{bucket.__name__} is a class; give an object of it")
    if type(bucket).__module__.startswith("obstore") or hasattr(bucket, "put_async"):
        return ObjectStoreBucket(bucket, wanted)
    if isinstance(bucket, SkillBucket):
        return bucket
    raise InvalidArgument(
        f"a folder, an obstore store or an object with list, get and put is needed, not {shown(bucket)}"
    )


def s3_store(url: str, config: Mapping[str, Any] | None = None) -> S3Store:
    """The store of ``s3://bucket[/prefix]``. What `config` leaves out comes from the ``AWS_*`` variables."""
    options = dict(config or {})
    endpoint = str(options.get("endpoint") or options.get("aws_endpoint") or "")
    # obstore forgets this variable as soon as any client option is given
    allowed = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes") or endpoint.startswith("http://")
    client: Any = {**_CLIENT, "allow_http": bool(options.pop("allow_http", allowed))}
    try:
        return S3Store.from_url(url, config=options, client_options=client, retry_config=_RETRIES)  # type: ignore[arg-type]
    except (BaseError, TypeError, ValueError) as exc:
        raise InvalidArgument(f"{shown(url)} cannot be opened: {str(exc).partition(chr(10))[0]}") from exc


def _is_key(key: str) -> bool:
    """Whether a key is a plain relative path: no part is empty or begins with a dot, so none can lead elsewhere."""
    parts = key.split("/")
    return not re.search(r"[\0-\x1f\x7f\\]", key) and all(part and not part.startswith(".") for part in parts)


def _check_document(key: str, size: int) -> None:
    if size > MAX_BYTES:
        raise InvalidArgument(f"The document {shown(key)} has {size:,} bytes; at most {MAX_BYTES:,} can be loaded.")


def _one_line(description: str | None) -> str | None:
    """A description must not look like further lines of the listing."""
    return " ".join(clean(description).split()) if description else None


def _encoded(description: str) -> str:
    if re.fullmatch(r"[ -~]+", description) and "=?" not in description:
        return description
    return Header(description, "utf-8", maxlinelen=10**9).encode()


def _decoded(written: Any) -> str | None:
    if not written:
        return None
    try:
        return str(make_header(decode_header(str(written))))
    except (HeaderParseError, LookupError, ValueError):  # somebody else's, which only looks encoded
        return str(written)


def _names_nothing(exc: OSError) -> bool:
    return exc.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)


def _replace(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old or the new text, never a part."""
    temporary = path.with_name(f".{uuid.uuid4().hex}.new")
    try:
        temporary.write_bytes(text.encode())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
