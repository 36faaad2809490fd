"""The record codec: what one object of the slot log, or a snapshot, is made of.

``header | body | sha256(header + body)``. The body is the pages, each ``u32 number, image``, compressed. The sha256 at
the end is the record's *digest*: the next record carries it as ``prev``, so the records form a chain (I3 in `log`).

A compressor belongs to one thread or connection: `Codec` objects must not be shared by threads (one shared by several
crashes the process, and may corrupt silently since the digest is taken after compression).
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

import zstandard

from storage.errors import CorruptRecord

MAGIC = b"PdR1"
ZERO = bytes(32)
_HEADER = struct.Struct("<4sBBHIIIQQQ16s16s32s")
_PAGE = struct.Struct("<I")
HEADER_SIZE = _HEADER.size
_RAW, _ZSTD = 0, 1
_CHUNK = 1 << 20


class Kind(IntEnum):
    OPEN = 1
    DATA = 2
    CLOSE = 3
    SNAPSHOT = 4


@dataclass(frozen=True, slots=True)
class Header:
    kind: Kind
    slot: int
    epoch: int
    prev: bytes  # digest of the record before; of a snapshot: of the record it stands on
    nonce: bytes  # 16 bytes, of the writer: tells two attempts at one slot apart
    node: bytes = bytes(16)  # of the writer; advisory, never used for safety
    time_ms: int = 0  # wall clock of the writer; advisory, never used for safety
    page_size: int = 0
    pages: int = 0  # in this record
    db_pages: int = 0  # size of the database after it, in pages
    flags: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    header: Header
    digest: bytes
    body: memoryview
    codec: int


class Codec:
    """Encodes and decodes records. Not for several threads."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=1)
        self._decompressor = zstandard.ZstdDecompressor()

    def encode(self, header: Header, pages: Mapping[int, bytes]) -> bytes:
        """A record of these page images (number -> image); ``header.pages`` must be their number."""
        if not pages:
            return _seal(_pack(header, _RAW))
        raw = b"".join(part for number, image in pages.items() for part in (_PAGE.pack(number), image))
        return _seal(_pack(header, _ZSTD) + self._compressor.compress(raw))

    def encode_stream(self, header: Header, images: Iterable[bytes]) -> bytes:
        """A snapshot of pages 1, 2, … in order, given in pieces of whole pages, without holding them all."""
        size = header.page_size
        stream = self._compressor.compressobj(size=header.pages * (_PAGE.size + size))
        parts = [_pack(header, _ZSTD)]
        number = 0
        for piece in images:
            raw: list[bytes] = []
            for offset in range(0, len(piece), size):
                number += 1
                raw += (_PAGE.pack(number), piece[offset : offset + size])
            parts.append(stream.compress(b"".join(raw)))
        parts.append(stream.flush())
        return _seal(b"".join(parts))

    def pages(self, record: Record) -> Iterator[tuple[int, bytes]]:
        """The page images of a record, in pieces: a big snapshot is never in memory as a whole. Raises CorruptRecord."""
        header = record.header
        if not header.pages:
            return
        if record.codec != _ZSTD:
            raise CorruptRecord(_name(header), f"unknown codec {record.codec}")
        unit = _PAGE.size + header.page_size
        left = header.pages
        try:
            with self._decompressor.stream_reader(record.body) as stream:
                while left:
                    piece = _read_exactly(stream, min(left, max(1, _CHUNK // unit)) * unit)
                    for offset in range(0, len(piece), unit):
                        (number,) = _PAGE.unpack_from(piece, offset)
                        yield number, piece[offset + _PAGE.size : offset + unit]
                        left -= 1
        except (zstandard.ZstdError, EOFError) as exc:
            raise CorruptRecord(_name(header), str(exc)) from exc


def decode(data: bytes, name: str) -> Record:
    """Check and take apart one record. Raises CorruptRecord with ``name`` in it."""
    header, codec = decode_header(data, name)
    view = memoryview(data)
    digest = bytes(view[-32:])
    if len(data) < HEADER_SIZE + 32 or hashlib.sha256(view[:-32]).digest() != digest:
        raise CorruptRecord(name, "its sha256 does not match")
    return Record(header, digest, view[HEADER_SIZE:-32], codec)


def decode_header(data: bytes, name: str) -> tuple[Header, int]:
    """Header and codec of a record, of which ``data`` may be only the first HEADER_SIZE bytes; nothing is verified."""
    try:
        magic, kind, codec, flags, page_size, pages, db_pages, epoch, slot, time_ms, nonce, node, prev = (
            _HEADER.unpack_from(data)
        )
        if magic != MAGIC:
            raise CorruptRecord(name, "it is not a record")
        return (
            Header(Kind(kind), slot, epoch, prev, nonce, node, time_ms, page_size, pages, db_pages, flags),
            codec,
        )
    except (struct.error, ValueError) as exc:
        raise CorruptRecord(name, "its header is not readable") from exc


def digest_of(data: bytes) -> bytes:
    """The digest of a record that this process has just encoded."""
    return data[-32:]


def _pack(header: Header, codec: int) -> bytes:
    return _HEADER.pack(
        MAGIC,
        header.kind,
        codec,
        header.flags,
        header.page_size,
        header.pages,
        header.db_pages,
        header.epoch,
        header.slot,
        header.time_ms,
        header.nonce,
        header.node,
        header.prev,
    )


def _seal(data: bytes) -> bytes:
    return data + hashlib.sha256(data).digest()


def _name(header: Header) -> str:
    return f"record {header.slot}"


def _read_exactly(stream: zstandard.ZstdDecompressionReader, size: int) -> bytes:
    data = stream.read(size)
    while len(data) < size:
        more = stream.read(size - len(data))
        if not more:
            raise EOFError("it ends too early")
        data += more
    return data
