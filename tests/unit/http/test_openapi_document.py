"""The description of the interface agrees with the routes, the handlers and docs/protocol.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from timeball.client.cli.group import main
from timeball.client.errors import InvalidRequest, MethodNotAllowed
from timeball.cluster.http.codec import BodyDecoder
from timeball.cluster.http.description import OF_A_KIND, Operation
from timeball.cluster.http.exchange import Request
from timeball.cluster.http.nouns import all_routes
from timeball.cluster.http.openapi import build, document
from timeball.cluster.http.operations import FRESHNESS, OPERATIONS, PATHS
from timeball.cluster.http.paging import read_query
from timeball.cluster.http.routes import Route

PROTOCOL = (Path(__file__).resolve().parents[3] / "docs" / "protocol.md").read_text("utf-8")
DESCRIBED: dict[str, Operation] = {
    route: operation for table in OPERATIONS.values() for route, operation in table.items()
}
NEVER_QUERIED = {"GET /healthz", "GET /metrics"}
"""Probes and scrapers may add what they like to these."""


class Done(Exception):
    """The handler has got past whatever it reads of a request."""


def raise_done(*_: object, **__: object) -> Any:
    raise Done


def served() -> dict[str, Route]:
    """Every route, its handlers on a node that lets them read and no more."""
    state = SimpleNamespace(remembered_claim=raise_done)
    services: Any = SimpleNamespace(
        require_room=lambda: None, propose=raise_done, take_snapshot=raise_done, state=state
    )
    routes = all_routes(services, cast("Any", None))
    return {f"{route.method} {route.pattern}": route for route in routes}


def asked(route: Route, **given: Any) -> Request:
    parameters = dict.fromkeys(re.findall(r"{(\w+)}", route.pattern), "1")
    return Request(route.method, route.pattern, parameters=parameters, **given)


def test_every_route_is_described_and_every_described_route_is_served() -> None:
    undescribed = served().keys() - DESCRIBED.keys()
    assert not undescribed, "each needs an entry in cluster/http/operations"
    assert not DESCRIBED.keys() - served().keys(), "nobody serves these"


@pytest.mark.parametrize("name", DESCRIBED)
def test_the_kind_of_a_request_is_that_of_its_route(name: str) -> None:
    route, kind = served()[name], DESCRIBED[name].kind
    assert kind in OF_A_KIND
    assert (route.leader, route.write) == (kind in ("write", "leader"), kind == "write")
    assert route.plain == (kind == "plain")


@pytest.mark.parametrize("name", DESCRIBED.keys() - NEVER_QUERIED)
async def test_the_described_query_is_the_one_that_is_read(name: str) -> None:
    operation = DESCRIBED[name]
    described = {each.name for each in operation.parameters if each.place == "query"}
    if operation.kind == "read":
        described |= {parameter.name for parameter in FRESHNESS}
    route = served()[name]
    with pytest.raises(InvalidRequest) as caught:
        await route.handler(asked(route, query="surprise=1"))
    known = caught.value.errors[0].detail.partition("known are: ")[2]
    assert set(known.split(", ")) == (described or {"none"})


@pytest.mark.parametrize("name", [name for name in DESCRIBED if DESCRIBED[name].kind == "read"])
def test_all_parameters_of_a_read_may_be_given_at_once(name: str) -> None:
    known = [each.name for each in (*DESCRIBED[name].parameters, *FRESHNESS)]
    assert read_query("&".join(f"{each}=1" for each in known), known).keys() == set(known)


@pytest.mark.parametrize("name", [name for name in DESCRIBED if not name.startswith("GET")])
async def test_the_described_body_is_the_one_that_is_decoded(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[tuple[type, bool]] = []

    def record(self: BodyDecoder, _body: bytes, _form: object) -> Any:
        decoded.append((self.kind, self.optional))
        raise Done

    monkeypatch.setattr(BodyDecoder, "decode", record)
    operation, route = DESCRIBED[name], served()[name]
    with pytest.raises(Done):
        await route.handler(asked(route))
    expected = [(operation.body, not operation.body_required)] if operation.body else []
    assert decoded == expected


# --- the protocol's own text -----------------------------------------------------------------


def sections() -> dict[str, str]:
    """The text under each heading that names requests, by request."""
    found: dict[str, str] = {}
    for part in re.split(r"^#{2,3} ", PROTOCOL, flags=re.MULTILINE)[1:]:
        heading, _, text = part.partition("\n")
        for name in re.findall(r"`([A-Z]+ /[^`]*)`", heading):
            found[name] = text
    return found


def replies(cell: str) -> set[tuple[int, str]]:
    """The statuses that the first cell of a row names, each with its message or problem."""
    return {(int(status), what) for status, what in re.findall(r"(\d{3}) `([\w-]+)`", cell)}


def told(operation: Operation) -> set[tuple[int, str]]:
    good = {
        (status, reply.message.__name__)
        for status, reply in operation.replies.items()
        if reply.message
    }
    return good | {(refusal.status, refusal.kind.code) for refusal in operation.problems}


@pytest.mark.parametrize("name", sections())
def test_the_protocol_tells_the_same_replies(name: str) -> None:
    text = sections()[name]
    if "as for pause" in text:
        text += sections()["POST /v1/jobs/{job_id}/pause"].partition("409")[0]
    rows = re.findall(r"^\| (\d{3}[^|]*) \|", text, re.MULTILINE)
    written = {reply for row in rows for reply in replies(row)}
    general = {(refusal.status, refusal.kind.code) for refusal in DESCRIBED[name].all_problems()}
    assert written - general == told(DESCRIBED[name]) - general
    assert told(DESCRIBED[name]) <= written


@pytest.mark.parametrize("name", sections())
def test_the_protocol_tells_the_same_parameters(name: str) -> None:
    text = sections()[name]
    operation = DESCRIBED[name]
    for parameter in operation.parameters:
        assert f"`{parameter.name}" in text, parameter.name
    if operation.body is not None:
        assert f"`{operation.body.__name__}`" in text


@pytest.mark.parametrize("name", DESCRIBED.keys() - sections().keys())
def test_what_the_protocol_tells_in_a_row_is_the_same(name: str) -> None:
    rows = [row for row in PROTOCOL.splitlines() if row.startswith("|")]
    (row,) = [row for row in rows if f"`{name}`" in row]
    operation = DESCRIBED[name]
    if name.startswith("POST /v1/executions/"):
        statuses = {int(status) for status in re.findall(r"\b(\d{3})\b", row)}
        if "{" in name:
            return  # "the same" as the batch's, and the text below it
        assert operation.body is not None
        assert f"`{operation.body.__name__}`" in row
        single = DESCRIBED[name.replace("executions/", "executions/{execution_id}/")]
        assert statuses == {status for status, _ in told(single)}
        return
    assert told(operation) <= replies(row), row
    assert all(f" {status}" in row for status in operation.replies)


def test_the_protocol_lists_every_problem_with_the_statuses_that_are_described() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| ([0-9, ]+) \|", PROTOCOL, re.MULTILINE)
    listed = {(code, int(status)) for code, told in rows for status in told.split(",")}
    described = {
        (refusal.kind.code, refusal.status)
        for operation in DESCRIBED.values()
        for refusal in operation.all_problems()
    }
    assert listed == described | {(MethodNotAllowed.code, 405)}  # which is of no operation


# --- the document itself -----------------------------------------------------------------------


def references(part: Any) -> set[str]:
    if isinstance(part, dict):
        own = {part["$ref"]} if isinstance(part.get("$ref"), str) else set()
        return own.union(*(references(inner) for inner in part.values()))
    return set().union(*map(references, part)) if isinstance(part, list) else set()


def test_all_references_lead_somewhere_and_all_components_are_referred_to() -> None:
    found = build()
    components = {
        f"#/components/{kind}/{name}"
        for kind, members in found["components"].items()
        for name in members
    }
    assert references(found) == components


def test_operations_have_names_of_their_own_and_all_their_path_parameters() -> None:
    names = [operation.id for operation in DESCRIBED.values()]
    assert len(set(names)) == len(names)
    assert {part for name in DESCRIBED for part in re.findall(r"{(\w+)}", name)} == PATHS.keys()


def test_patterns_are_those_of_json_schema() -> None:
    assert rb"\\A" not in document()
    assert rb"\\Z" not in document()
    assert b'"pattern":"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"' in document()


def test_the_command_prints_what_a_node_serves() -> None:
    printed = CliRunner().invoke(main, ["openapi"])
    assert printed.exit_code == 0
    assert json.loads(printed.output) == json.loads(document())
