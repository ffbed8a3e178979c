"""How fresh a read must be: what is refused, what waits, and what every answer tells."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from timeball.client.errors import InvalidRequest, NotCaughtUp, Overloaded, Unavailable
from timeball.cluster.http.cluster_view import ClusterReports
from timeball.cluster.http.dead import DeadLetters
from timeball.cluster.http.exchange import Request
from timeball.cluster.http.executions import Executions
from timeball.cluster.http.freshness import wait_until_fresh
from timeball.cluster.http.jobs import Jobs
from timeball.cluster.http.problems import as_timeball_error, problem_response
from timeball.cluster.http.services import Services
from timeball.cluster.raft import errors as consensus


class Node:
    """A replica that has applied seven entries, and keeps every reader waiting."""

    applied_index = 7

    def __init__(self) -> None:
        self.asked: list[tuple[int, bool]] = []
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def read(self, index: int, *, strong: bool) -> asyncio.Future[None]:
        self.asked.append((index, strong))
        return self.answer


@pytest.mark.parametrize(
    ("parameters", "asked"),
    [
        ({}, []),
        ({"consistency": "applied"}, []),
        ({"min_index": "0"}, []),
        ({"min_index": "7"}, []),
        ({"min_index": "8"}, [(8, False)]),
        ({"min_index": str(2**53 - 1), "consistency": "applied"}, [(2**53 - 1, False)]),
        ({"consistency": "strong"}, [(0, True)]),
        ({"consistency": "strong", "min_index": "5"}, [(5, True)]),
    ],
)
async def test_only_what_is_not_there_yet_is_waited_for(
    parameters: dict[str, str], asked: list[tuple[int, bool]]
) -> None:
    node: Any = Node()
    node.answer.set_result(None)
    await wait_until_fresh(parameters, node)
    assert node.asked == asked


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("min_index", text) for text in ("", "-1", "+1", "1.0", "1e3", " 1", "x", "٣", "0x1")),
        ("min_index", str(2**53)),
        ("min_index", "9" * 5000),
        *(("consistency", text) for text in ("", "STRONG", "weak", "strong ")),
    ],
)
async def test_what_is_no_freshness_is_refused_by_name_without_waiting(
    name: str, text: str
) -> None:
    node: Any = Node()
    with pytest.raises(InvalidRequest) as refused:
        await wait_until_fresh({"consistency": "strong", "min_index": "9", name: text}, node)
    assert [error.field for error in refused.value.errors] == [name]
    assert len(refused.value.detail) < 200
    assert not node.asked


@pytest.mark.parametrize(
    ("noun", "handler", "parameters"),
    [
        (Jobs, "get", {"job_id": "1"}),
        (Jobs, "list_page", {}),
        (Executions, "get", {"execution_id": "1-1"}),
        (Executions, "list_page", {}),
        (DeadLetters, "list_page", {}),
        (lambda services: ClusterReports(services, None), "cluster", {}),
    ],
)
async def test_every_read_looks_at_the_state_only_once_it_is_fresh(
    noun: Any, handler: str, parameters: dict[str, str]
) -> None:
    node = Node()
    parts: Any = dict.fromkeys(Services.__struct_fields__)
    parts["replica"] = node
    parts["settings"] = SimpleNamespace(queues=None)
    read = getattr(noun(Services(**parts)), handler)
    query = "consistency=strong&min_index=9"
    request = Request(method="GET", path="/", query=query, parameters=parameters)
    reading = asyncio.ensure_future(read(request))
    await asyncio.sleep(0)
    assert node.asked == [(9, True)]
    assert not reading.done(), "there is no state: to look at it would fail"
    node.answer.set_exception(consensus.NotCaughtUp(9, 7))
    with pytest.raises(consensus.NotCaughtUp):
        await reading


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (consensus.NotCaughtUp(9, 7), NotCaughtUp),
        (consensus.NotConfirmed("no leader is known"), Unavailable),
        (consensus.TooManyReads(5), Overloaded),
    ],
)
def test_a_read_that_is_not_answered_says_when_to_come_again(
    error: Exception, kind: type[Exception]
) -> None:
    public = as_timeball_error(error)
    assert type(public) is kind
    answer = problem_response(public, "json")
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
