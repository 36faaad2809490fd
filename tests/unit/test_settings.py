"""Where a setting comes from, and what a mistake in one says."""

import pickle
from pathlib import Path

import pytest

from actors.errors import BadSetting
from actors.settings import Settings, load_settings, unknown_variables


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv("PERDURE_" + name.upper(), raising=False)


def config(folder: Path, text: str) -> Path:
    path = folder / "perdure.toml"
    path.write_text(text, "utf-8")
    return path


def test_a_flag_wins_over_a_variable_over_the_file_over_the_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = config(tmp_path, "idle_seconds = 3\nspares = 3\nport = 3\n")
    monkeypatch.setenv("PERDURE_IDLE_SECONDS", "2")
    monkeypatch.setenv("PERDURE_SPARES", "2")
    settings = load_settings({"idle_seconds": 1.0, "spares": None, "agents": []}, file)
    assert (settings.idle_seconds, settings.spares, settings.port, settings.recycle) == (1.0, 2, 3, 1_000)


def test_zero_is_a_value_and_not_a_missing_flag(tmp_path: Path) -> None:
    assert load_settings({"port": 0}, config(tmp_path, "port = 5")).port == 0


def test_paths_are_absolute_and_the_store_is_in_the_data_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings({"data": Path("here")})
    assert (settings.data, settings.store) == (tmp_path / "here", str(tmp_path / "here" / "store"))
    assert load_settings({"store": "s3://bucket/prefix"}).store == "s3://bucket/prefix"


def test_variables_hold_several_words_with_spaces_or_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_AGENTS", "a:B, c.d:E f:G")
    monkeypatch.setenv("PERDURE_ALLOW_ORIGIN", "")
    settings = load_settings({})
    assert (settings.agents, settings.allow_origin) == (("a:B", "c.d:E", "f:G"), ())


def test_the_file_may_spell_names_as_the_flags_do(tmp_path: Path) -> None:
    assert load_settings({}, config(tmp_path, "idle-seconds = 7")).idle_seconds == 7


def test_settings_cross_a_process_unchanged() -> None:
    settings = load_settings({"port": 1})
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"idle_seconds": -5}, "--idle-seconds should be greater than 0, not -5."),
        ({"idle_seconds": float("nan")}, "--idle-seconds should be a finite number, not nan."),
        ({"port": 70_000}, "--port should be less than or equal to 65535, not 70000."),
        ({"agents": ["nonsense"]}, "MODULE:CLASS 'nonsense' should be MODULE:CLASS, for example my_module:Assistant."),
        ({"agents": ["a:b:C"]}, "MODULE:CLASS 'a:b:C' should be MODULE:CLASS, for example my_module:Assistant."),
    ],
)
def test_a_bad_flag_is_one_sentence_that_names_it(flags: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadSetting) as caught:
        load_settings(flags)
    assert str(caught.value) == sentence


def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_MAX_AWAKE", "many")
    with pytest.raises(BadSetting, match=r"^PERDURE_MAX_AWAKE should be a valid integer, not 'many'\.$"):
        load_settings({})


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("idle_second = 3", r"there is no setting 'idle_second'; is 'idle_seconds' meant\?"),
        ("recycle = 'x'", r"recycle should be a valid integer, not 'x'\."),
        ("recycle = ", r"this is not TOML \(.*\)\."),
    ],
)
def test_a_mistake_in_the_file_names_the_file(tmp_path: Path, text: str, rest: str) -> None:
    with pytest.raises(BadSetting, match=rf"^--config .*perdure\.toml: {rest}$"):
        load_settings({}, config(tmp_path, text))


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"the file cannot be read \(No such file or directory\)"):
        load_settings({}, tmp_path / "nowhere.toml")


def test_a_misspelt_variable_is_not_ignored_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_IDEL_SECONDS", "1")
    monkeypatch.setenv("PERDURE_URL", "ws://127.0.0.1:1")
    assert unknown_variables() == [
        "PERDURE_IDEL_SECONDS is not a setting and is ignored; is PERDURE_IDLE_SECONDS meant?"
    ]
