"""A test that an index names must be there, be collected, always run and assert something."""

from pathlib import Path
from textwrap import dedent

import pytest
from named_tests import fault_of

SOUND = """
    import pytest
    from helping import check

    def check_here(value):
        assert value

    @pytest.fixture
    def harmless():
        return 1

    def test_plain(harmless):
        assert harmless

    async def test_by_raising():
        with pytest.raises(ValueError):
            int("x")

    @pytest.mark.parametrize("value", [1])
    def test_by_a_helper(value):
        check_here(value)

    def test_by_an_imported_helper():
        check(1)
"""

FAULTY = """
    import pytest

    @pytest.fixture
    def absent():
        pytest.skip("nothing to test with")

    @pytest.fixture
    def indirect(absent):
        return absent

    @pytest.mark.skip(reason="later")
    def test_marked():
        assert True

    @pytest.mark.skipif(True, reason="later")
    async def test_marked_on_a_condition():
        assert True

    @pytest.mark.xfail
    def test_marked_to_fail():
        assert False

    def test_calls_skip():
        assert True
        pytest.skip("later")

    def test_of_a_fixture_that_skips(indirect):
        assert indirect

    def test_asserts_nothing(tmp_path):
        tmp_path.mkdir()

    def test_twice():
        assert 1

    def test_twice():
        assert 2

    class TestGroup:
        def test_in_a_class(self):
            assert True
"""


def written(folder: Path, name: str, text: str) -> None:
    (folder / "unit").mkdir(exist_ok=True)
    (folder / "unit" / name).write_text(dedent(text))


@pytest.mark.parametrize("name", ["plain", "by_raising", "by_a_helper", "by_an_imported_helper"])
def test_nothing_is_wrong_with_a_sound_test(tmp_path: Path, name: str) -> None:
    written(tmp_path, "test_sound.py", SOUND)
    written(tmp_path, "helping.py", "def check(value):\n    assert value\n")
    assert fault_of("unit/test_sound.py", f"test_{name}", root=tmp_path) is None


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("test_marked", "is marked"),
        ("test_marked_on_a_condition", "is marked"),
        ("test_marked_to_fail", "is marked"),
        ("test_calls_skip", "may skip itself"),
        ("test_of_a_fixture_that_skips", "may skip itself"),
        ("test_asserts_nothing", "asserts nothing"),
        ("test_twice", "has 2 tests"),
        ("test_in_a_class", "has 0 tests"),
        ("test_that_nobody_wrote", "has 0 tests"),
        ("absent", "is not collected"),
    ],
)
def test_what_is_wrong_with_a_test_is_said(tmp_path: Path, name: str, fault: str) -> None:
    written(tmp_path, "test_faulty.py", FAULTY)
    assert fault in (fault_of("unit/test_faulty.py", name, root=tmp_path) or "")


@pytest.mark.parametrize(
    "cause",
    [
        'pytestmark = pytest.mark.skipif(True, reason="later")',
        '@pytest.fixture(autouse=True)\ndef server():\n    pytest.skip("no server")',
    ],
)
def test_a_module_may_not_skip_its_tests_either(tmp_path: Path, cause: str) -> None:
    written(tmp_path, "test_module.py", f"import pytest\n{cause}\n\ndef test_it():\n    assert 1\n")
    assert fault_of("unit/test_module.py", "test_it", root=tmp_path) is not None


def test_a_file_that_is_not_there_or_is_not_collected_is_said(tmp_path: Path) -> None:
    written(tmp_path, "helping.py", "def test_it():\n    assert 1\n")
    assert fault_of("unit/test_gone.py", "test_it", root=tmp_path) == "there is no unit/test_gone.py"
    assert fault_of("unit/helping.py", "test_it", root=tmp_path) == "unit/helping.py::test_it is not collected"
