"""A congested node refuses new jobs, before it spends anything on them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from timeball.client.errors import InvalidRequest
from timeball.cluster.http.exchange import Request
from timeball.cluster.http.jobs import Jobs
from timeball.cluster.http.problems import as_timeball_error, problem_response
from timeball.cluster.http.services import Services
from timeball.cluster.raft.errors import Overloaded


def jobs(congested: bool) -> Jobs:
    names = [name for name in Services.__struct_fields__ if name != "congested"]
    parts: Any = dict.fromkeys(names, SimpleNamespace())
    return Jobs(Services(congested=lambda: congested, **parts))


@pytest.mark.parametrize("handler", ["create", "create_batch"])
async def test_creates_are_refused_unread_and_told_when_to_come_again(handler: str) -> None:
    request = Request(method="POST", path="/", body=b"no JSON", body_form="json")
    with pytest.raises(Overloaded) as refused:
        await getattr(jobs(congested=True), handler)(request)
    answer = problem_response(as_timeball_error(refused.value), "json")
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
    with pytest.raises(InvalidRequest):
        await getattr(jobs(congested=False), handler)(request)
