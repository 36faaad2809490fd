"""The record codec: what goes in comes out, and nothing that was changed is taken for a record."""

import random
import threading

import pytest

from storage.checkpoints.records import HEADER_SIZE, ZERO, Codec, Header, Kind, decode, decode_header, digest_of
from storage.errors import CorruptRecord

PAGES = {1: b"a" * 512, 7: bytes(range(256)) * 2, 3: b"\0" * 512}


def header(kind: Kind = Kind.DATA, pages: int = 3) -> Header:
    return Header(kind, 5, 9, b"p" * 32, b"n" * 16, b"o" * 16, 1234, 512 if pages else 0, pages, 7 if pages else 0)


def test_a_record_comes_back_as_it_went_in() -> None:
    codec = Codec()
    data = codec.encode(header(), PAGES)
    record = decode(data, "x")
    assert record.header == header()
    assert dict(codec.pages(record)) == PAGES
    assert record.digest == digest_of(data)
    assert decode_header(data[:HEADER_SIZE], "x")[0] == header()


def test_a_record_without_pages_is_only_a_header_and_a_digest() -> None:
    codec = Codec()
    data = codec.encode(header(Kind.OPEN, 0), {})
    assert len(data) == HEADER_SIZE + 32
    assert list(codec.pages(decode(data, "x"))) == []


def test_a_streamed_snapshot_equals_its_pages() -> None:
    image = random.Random(1).randbytes(512 * 1000)
    pieces = [image[n : n + 512 * 300] for n in range(0, len(image), 512 * 300)]
    codec = Codec()
    snapshot = Header(Kind.SNAPSHOT, 5, 9, ZERO, b"n" * 16, page_size=512, pages=1000, db_pages=1000)
    record = decode(codec.encode_stream(snapshot, pieces), "x")
    assert b"".join(page for _, page in codec.pages(record)) == image
    assert [number for number, _ in codec.pages(record)] == list(range(1, 1001))


def test_every_flipped_bit_is_noticed() -> None:
    data = Codec().encode(header(), PAGES)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        with pytest.raises(CorruptRecord):
            decode(bytes(damaged), "x")


def test_every_truncation_is_noticed() -> None:
    data = Codec().encode(header(), PAGES)
    for size in range(len(data)):
        with pytest.raises(CorruptRecord):
            decode(data[:size], "x")


def test_a_body_that_is_shorter_than_its_header_says_is_corrupt() -> None:
    codec = Codec()
    record = decode(codec.encode(header(pages=4), PAGES), "x")
    with pytest.raises(CorruptRecord):
        dict(codec.pages(record))


def test_each_thread_has_a_codec_of_its_own_and_they_agree() -> None:
    results: set[bytes] = set()

    def work() -> None:
        codec = Codec()
        for _ in range(200):
            data = codec.encode(header(), PAGES)
            assert dict(codec.pages(decode(data, "x"))) == PAGES
            results.add(data)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 1
