"""Errors cross processes by pickle and keep their facts, their class and their sentence."""

import importlib
import inspect
import pickle
import pkgutil
import re
from collections.abc import Iterator

import pytest

import actors
import compaction
import storage
from storage.errors import StorageError


def error_modules() -> Iterator[str]:
    for package in (storage, compaction, actors):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith("errors"):
                yield module.name


def error_classes() -> list[type[Exception]]:
    return [
        member
        for name in error_modules()
        for _, member in inspect.getmembers(importlib.import_module(name), inspect.isclass)
        if issubclass(member, Exception) and member.__module__ == name
    ]


def example(kind: type[Exception]) -> Exception:
    """An error with as many facts as its sentence has places."""
    places = re.findall(r"\{(\d)", getattr(kind, "sentence", ""))
    return kind(*(f"fact {number}" for number in range(1 + max(map(int, places), default=-1))))


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_an_error_survives_pickling(kind: type[Exception]) -> None:
    error = example(kind)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (copy.args, str(copy)) == (error.args, str(error))
    assert str(copy)
    assert "{" not in str(copy)


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_an_error_belongs_to_the_one_tree(kind: type[Exception]) -> None:
    assert issubclass(kind, StorageError)


def test_no_two_leaves_share_a_wire_code() -> None:
    leaves = [kind for kind in error_classes() if not kind.__subclasses__()]
    codes = [kind.code for kind in leaves]  # type: ignore[attr-defined]
    assert sorted(codes) == sorted(set(codes))


@pytest.mark.parametrize("name", ["storage.errors", "compaction.errors", "actors.errors"])
def test_the_tree_of_a_layer_is_drawn_in_its_module(name: str) -> None:
    drawing = importlib.import_module(name).__doc__ or ""
    assert [kind.__name__ for kind in error_classes() if kind.__module__ == name and kind.__name__ not in drawing] == []


def test_all_trees_are_found() -> None:
    assert {"storage.errors", "compaction.errors", "actors.errors"} <= set(error_modules())
    assert len(error_classes()) > 30
