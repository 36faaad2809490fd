"""How the JSON arguments of a call become Python arguments."""

from typing import Any

import pytest

from actors.rpc import camel_case, rpc, rpc_methods
from storage.errors import InvalidArgument

LEFT_OUT = "left out"


class Example:
    @rpc(verb="append")
    async def append_message(self, message: dict[str, Any], parent_id: str | None = LEFT_OUT) -> None: ...

    @rpc(verb="read")
    async def search(self, query: str, limit: int = 20, in_order: bool = False) -> Any: ...

    @rpc(streaming=True)
    async def chat(self, stream: Any, text: str) -> None: ...

    @rpc(name="listAll")
    async def everything(self): ...

    async def hidden(self) -> None: ...


METHODS = rpc_methods(Example)


def test_methods_are_found_by_their_camel_case_name_and_by_their_python_name():
    assert METHODS["appendMessage"] is METHODS["append_message"]
    assert METHODS["listAll"].attribute == "everything"
    assert "hidden" not in METHODS


def test_the_stream_is_not_an_argument_of_a_streaming_method():
    assert METHODS["chat"].bind(["hello"]) == {"text": "hello"}


def test_a_missing_argument_is_not_given_and_null_is_none_where_none_is_allowed():
    message = {"id": "m1"}
    assert METHODS["appendMessage"].bind([message]) == {"message": message}
    assert METHODS["appendMessage"].bind([message, None]) == {"message": message, "parent_id": None}
    assert METHODS["search"].bind(["x", None]) == {"query": "x"}


def test_an_object_in_the_place_of_a_plain_value_is_an_options_object():
    assert METHODS["search"].bind(["x", {"limit": 3, "inOrder": True}]) == {"query": "x", "limit": 3, "in_order": True}
    assert METHODS["search"].bind([{"query": "x"}]) == {"query": "x"}


def test_an_unknown_option_is_refused_by_name():
    with pytest.raises(InvalidArgument, match="no option 'limt'; it has inOrder, limit"):
        METHODS["search"].bind(["x", {"limt": 3}])


def test_surplus_arguments_are_ignored():
    assert METHODS["search"].bind(["x", 3, True, "more", {}]) == {"query": "x", "limit": 3, "in_order": True}


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("search", [], "search needs the argument 'query'"),
        ("search", [None], "search needs the argument 'query'"),
        ("search", [7], "search: 'query' must be text"),
        ("search", ["x", "3"], "search: 'limit' must be a whole number"),
        ("search", ["x", True], "search: 'limit' must be a whole number"),
        ("search", ["x", 1.5], "search: 'limit' must be a whole number"),
        ("search", ["x", float("nan")], "search: 'limit' must be a whole number"),
        ("appendMessage", ["m1"], "appendMessage: 'message' must be an object"),
        ("appendMessage", [{}, 7], "appendMessage: 'parentId' must be text"),
    ],
)
def test_a_wrong_argument_gets_one_sentence_that_names_it(name, arguments, sentence):
    with pytest.raises(InvalidArgument, match=sentence):
        METHODS[name].bind(arguments)


def test_only_async_methods_can_be_offered():
    class Wrong:
        @rpc
        def ping(self) -> str:
            return "pong"

    with pytest.raises(TypeError, match="async def"):
        rpc_methods(Wrong)


def test_an_unknown_verb_is_refused_when_the_class_is_written():
    with pytest.raises(ValueError, match="the verbs are"):
        rpc(verb="write")


def test_a_method_without_a_result_annotation_returns_nothing():
    assert METHODS["appendMessage"].returns_nothing
    assert METHODS["listAll"].returns_nothing
    assert not METHODS["search"].returns_nothing


def test_camel_case():
    assert camel_case("get_latest_leaf") == "getLatestLeaf"
    assert camel_case("search") == "search"


def test_a_stream_is_never_run_again_by_the_next_owner():
    with pytest.raises(ValueError, match="chunks"):
        rpc(streaming=True, single=True)
