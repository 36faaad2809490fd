"""One suite that every checkpoint store must pass, and what is particular to the one in a folder."""

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.checkpoints import DirectoryStore, MemoryStore, open_store, probe, store_id
from storage.checkpoints.store import AlreadyExists, CheckpointStore, NotFound
from storage.errors import ForeignDatabase, InvalidArgument, StoreUnavailable, UnsafeStore


@pytest.fixture(params=["memory", "directory", "directory with named temporary files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    made: CheckpointStore
    if request.param == "memory":
        made = MemoryStore()
    else:
        made = DirectoryStore(tmp_path / "store", anonymous=None if request.param == "directory" else False)
    yield made
    made.close()


def test_what_was_created_is_read_back(store: CheckpointStore) -> None:
    store.create("aa/bb/log/0001", b"content")
    assert store.get("aa/bb/log/0001") == b"content"
    assert store.get("aa/bb/log/0001", size=3) == b"con"
    assert store.exists("aa/bb/log/0001")


def test_a_second_create_changes_nothing(store: CheckpointStore) -> None:
    store.create("a/x", b"first")
    with pytest.raises(AlreadyExists):
        store.create("a/x", b"second")
    assert store.get("a/x") == b"first"


def test_an_empty_object_and_a_big_one_are_possible(store: CheckpointStore) -> None:
    store.create("a/empty", b"")
    big = os.urandom(5_000_000)
    store.create("a/big", big)
    assert store.get("a/empty") == b""
    assert store.get("a/big") == big


def test_absent_is_told_from_present(store: CheckpointStore) -> None:
    assert not store.exists("a/x")
    with pytest.raises(NotFound):
        store.get("a/x")
    store.delete("a/x")


def test_a_deleted_key_can_be_created_again(store: CheckpointStore) -> None:
    store.create("a/x", b"1")
    store.delete("a/x")
    assert not store.exists("a/x")
    store.create("a/x", b"2")
    assert store.get("a/x") == b"2"


def test_a_list_shows_what_is_directly_below_in_order(store: CheckpointStore) -> None:
    for key in ("c/2", "c/1", "c/d/9", "other"):
        store.create(key, b"")
    assert list(store.list("c/")) == ["1", "2", "d/"]
    assert list(store.list("")) == ["c/", "other"]
    assert list(store.list("nothing/")) == []


@pytest.mark.parametrize("second", [b"of another length", b"first"[::-1], b"x" * 10_000])
def test_a_hint_is_replaced(store: CheckpointStore, second: bytes) -> None:
    store.put_hint("a/hint", b"first")
    store.put_hint("a/hint", second)
    assert store.get("a/hint") == second
    assert list(store.list("a/")) == ["hint"]


def test_of_many_creates_at_once_exactly_one_wins(store: CheckpointStore) -> None:
    for round_number in range(5):
        start = threading.Barrier(8)
        winners: list[bytes] = []

        def race(
            mine: bytes, key: str = f"r/{round_number}", start: threading.Barrier = start, won: list[bytes] = winners
        ) -> None:
            start.wait()
            try:
                store.create(key, mine)
                won.append(mine)
            except AlreadyExists:
                pass

        threads = [threading.Thread(target=race, args=(b"%d" % n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(winners) == 1
        assert store.get(f"r/{round_number}") == winners[0]


def test_a_sound_store_passes_the_probe_and_nothing_of_it_stays(store: CheckpointStore) -> None:
    probe(store)
    assert list(store.list("probe/")) == []


def test_the_id_of_a_store_is_made_once(store: CheckpointStore) -> None:
    assert store_id(store) == store_id(store)
    assert len(store_id(store)) == 32


def test_a_store_of_a_newer_format_is_foreign() -> None:
    store = MemoryStore()
    store.create("store.json", b'{"id": "x", "format": 2}')
    with pytest.raises(ForeignDatabase):
        store_id(store)


class _Overwrites(MemoryStore):
    def create(self, key: str, data: bytes) -> None:
        self.objects[key] = data


class _LosesRaces(MemoryStore):
    """Tests, then sets: correct alone, wrong together."""

    def __init__(self) -> None:
        super().__init__()
        self._all = threading.Barrier(16)

    def create(self, key: str, data: bytes) -> None:
        if key in self.objects:
            raise AlreadyExists(key)
        if "race" in key:
            self._all.wait(30)
        self.objects[key] = data


class _HidesFromLists(MemoryStore):
    def list(self, prefix: str) -> list[str]:
        return []


@pytest.mark.parametrize("kind", [_Overwrites, _LosesRaces, _HidesFromLists])
def test_a_store_that_breaks_the_promise_is_refused(kind: type[MemoryStore]) -> None:
    with pytest.raises(UnsafeStore):
        probe(kind())


# ---- the folder ----


@pytest.mark.parametrize("anonymous", [True, False])
def test_files_and_folders_are_private(tmp_path: Path, anonymous: bool) -> None:
    old = os.umask(0)
    try:
        store = DirectoryStore(tmp_path / "deep" / "store", anonymous=anonymous)
        store.create("aa/bb/x", b"1")
        store.put_hint("aa/bb/hint", b"1")
    finally:
        os.umask(old)
    for folder, _, files in os.walk(tmp_path / "deep"):
        assert os.stat(folder).st_mode & 0o777 == 0o700
        for name in files:
            assert os.stat(Path(folder, name)).st_mode & 0o777 == 0o600
    store.close()


@pytest.mark.parametrize("key", ["../x", "/etc/x", "a/../b", "a//b", "", "A/x", ".t/x", "a/\0", "a/é", "a/b/"])
def test_a_key_cannot_leave_the_folder(tmp_path: Path, key: str) -> None:
    store = DirectoryStore(tmp_path / "store")
    for call in (
        store.get,
        store.exists,
        store.delete,
        lambda k: store.create(k, b""),
        lambda k: store.put_hint(k, b""),
    ):
        with pytest.raises(ValueError, match="not a key"):
            call(key)
    store.close()


def test_a_link_planted_at_a_key_is_not_followed(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    store.create("a/x", b"")
    os.symlink(victim, tmp_path / "store" / "a" / "link")
    with pytest.raises(AlreadyExists):
        store.create("a/link", b"evil")
    with pytest.raises(StoreUnavailable):
        store.get("a/link")
    store.delete("a/link")
    assert victim.read_bytes() == b"mine"
    store.close()


def test_what_a_killed_process_left_half_written_is_swept_and_never_seen(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store", anonymous=False)
    leftover = tmp_path / "store" / ".t" / "1-dead"
    leftover.write_bytes(b"torn")
    os.utime(leftover, (1, 1))
    fresh = tmp_path / "store" / ".t" / "2-alive"
    fresh.write_bytes(b"of a process that runs")
    assert list(store.list("")) == []
    again = DirectoryStore(tmp_path / "store")
    assert not leftover.exists()
    assert fresh.exists()
    store.close()
    again.close()


def test_parents_are_synced_before_a_create_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(tmp_path / "store")
    synced: list[str] = []
    fsync = os.fsync

    def watch(descriptor: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path / "store"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watch)
    store.create("aa/bb/log/1", b"x")
    assert synced == [".", "aa", "aa/bb", "aa/bb/log"]
    synced.clear()
    store.create("aa/bb/log/2", b"x")
    assert synced == ["aa/bb/log"]
    synced.clear()
    with pytest.raises(AlreadyExists):
        store.create("aa/bb/log/2", b"x")
    assert synced == ["aa/bb/log"], "what is found must be durable, it may be our own after a lost answer"
    other = DirectoryStore(tmp_path / "store")
    synced.clear()
    other.create("aa/bb/log/3", b"x")
    assert synced == [".", "aa", "aa/bb", "aa/bb/log"], "who made the folders may have died before the sync"
    store.close()
    other.close()


def test_a_removed_folder_is_no_answer_and_not_an_empty_store(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    store.create("a/x", b"1")
    os.rename(tmp_path / "store", tmp_path / "moved")
    assert store.get("a/x") == b"1", "a replaced path changes nothing"
    os.system(f"rm -rf {tmp_path / 'moved'}")
    for call in (store.exists, store.get, lambda key: store.create(key, b"")):
        with pytest.raises(StoreUnavailable):
            call("a/x")
    store.close()


def test_no_descriptor_stays_open_after_a_call(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        store.create(f"a/{number}", b"1")
        store.get(f"a/{number}")
        store.list("a/")
    assert len(os.listdir("/proc/self/fd")) == before
    store.close()


def test_an_address_of_an_object_store_says_that_it_comes_later(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="later release"):
        open_store("s3://bucket/prefix")
    store = open_store(str(tmp_path / "x"))
    assert store.name == str(tmp_path / "x")
    store.close()


def test_a_path_that_is_no_folder_is_one_clear_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="file"):
        open_store(str(tmp_path / "file"))


@pytest.mark.parametrize("anonymous", [None, False])
def test_a_store_that_cannot_be_written_is_opened_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anonymous: bool | None
) -> None:
    store = DirectoryStore(tmp_path / "store")
    store.create("a/x", b"1")
    store.close()
    (tmp_path / "store" / ".t").rmdir()
    open_file = os.open

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def open_read_only(path: str, flags: int, *arguments: int, **options: int) -> int:
        return refuse() if flags & (os.O_WRONLY | os.O_RDWR) else open_file(path, flags, *arguments, **options)

    with monkeypatch.context() as read_only:
        read_only.setattr(os, "open", open_read_only)
        for name in ("mkdir", "link", "unlink", "replace"):
            read_only.setattr(os, name, refuse)
        store = DirectoryStore(tmp_path / "store", anonymous=anonymous)
        assert store.get("a/x") == b"1"
        with pytest.raises(StoreUnavailable, match="Read-only"):
            store.create("a/y", b"2")
    store.create("a/y", b"2")
    store.put_hint("a/hint", b"3")
    assert list(store.list("a/")) == ["hint", "x", "y"]
    store.close()
