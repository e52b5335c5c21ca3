"""What an operator may ask: a name, at most a version; everything else is refused with its name."""

import pytest

from holdfast.errors import BadRequest
from holdfast.serve.protocol.repository import (
    check_load,
    check_repository,
    check_unload,
    parse_index,
    parse_parameters,
)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"parameters": {}}'])
def test_without_parameters_the_newest_version_is_meant(body):
    assert check_load(parse_parameters(body)) == 0


@pytest.mark.parametrize("version", [3, "3"])
def test_a_version_is_a_number_written_either_way(version):
    assert check_load({"version": version}) == 3


@pytest.mark.parametrize("version", ["../3", "/etc", "3/..", "03", "0", 0, -1, 1.0, True, None, [3], "3 ", "9" * 10])
def test_nothing_else_is_a_version(version):
    with pytest.raises(BadRequest, match=r"^parameters\.version: is .*; it is the number of a version"):
        check_load({"version": version})


@pytest.mark.parametrize("name", ["config", "file:1/model.pt", "path", "url"])
def test_no_client_says_where_a_model_lies_or_what_it_is(name):
    with pytest.raises(BadRequest, match="models are served from the folders with which the server was started"):
        check_load({name: "x"})


def test_unloading_takes_what_clients_always_send():
    check_unload({"unload_dependents": False})
    for parameters in ({"unload_dependents": 1}, {"other": True}):
        with pytest.raises(BadRequest, match="is not taken"):
            check_unload(parameters)


def test_the_repository_has_no_name():
    check_repository("")
    with pytest.raises(BadRequest, match=r"^repository_name: is 'other'; there is one"):
        check_repository("other")


def test_an_index_is_of_all_models_or_of_those_that_are_ready():
    assert [parse_index(body) for body in (b"", b"{}", b'{"ready": true}')] == [False, False, True]


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"ready": 1}', b'{"parameters": [1]}', b"\xff", b"[" * 100_000])
def test_what_is_no_such_body_is_a_bad_request(body):
    with pytest.raises(BadRequest):
        if b"ready" in body:
            parse_index(body)
        else:
            parse_parameters(body)
