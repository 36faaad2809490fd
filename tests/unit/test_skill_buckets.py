"""Skills in folders, object stores and whatever has the three methods."""

import pytest
from obstore.store import LocalStore, MemoryStore

from storage import R2SkillProvider
from storage.errors import InvalidArgument
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


@pytest.fixture(params=["folder", "memory", "own"])
def bucket(request, tmp_path):
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


async def test_a_store_without_metadata_refuses_descriptions(tmp_path):
    provider = R2SkillProvider(LocalStore(str(tmp_path)))
    await provider.set("plain", "text")
    assert await provider.get() == "- plain"
    with pytest.raises(InvalidArgument):
        await provider.set("described", "text", "a description")
    assert await provider.get() == "- plain"
    assert isinstance(provider._bucket, ObjectStoreBucket)


@pytest.mark.parametrize("bad", [None, 5, object()])
def test_anything_else_is_refused(bad):
    with pytest.raises(InvalidArgument):
        R2SkillProvider(bad)
