"""What has no room is refused by name, in every form of request, and says when to come again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from timeball.client.messages import Problem
from timeball.cluster.dispatch.errors import TooManyClaims
from timeball.cluster.http.application import Application
from timeball.cluster.http.claims import Claims
from timeball.cluster.http.exchange import Request, Response
from timeball.cluster.http.executions import Executions
from timeball.cluster.http.forward import Forwarder
from timeball.cluster.http.jobs import Jobs
from timeball.cluster.http.services import Services
from timeball.cluster.raft.errors import Expired, Overloaded
from timeball.cluster.settings import parse_settings
from timeball.cluster.state.machine import StateMachine

CONFIG = """
name = "x"
[[nodes]]
name = "a"
raft = "127.0.0.1:7101"
http = "127.0.0.1:7001"
"""
HOLD = {"execution_id": "4096-1", "token": 1}


class FullDispatcher:
    async def claim(self, _request: object) -> None:
        raise TooManyClaims("too many")


class Desk:
    """An application whose log fails every proposal as it is told to."""

    def __init__(self, tmp_path: Any) -> None:
        self.errors: list[Exception] = []
        parts: Any = dict.fromkeys(Services.__struct_fields__, lambda: False)
        parts |= {
            "settings": parse_settings(CONFIG, tmp_path / "timeball.toml"),
            "state": StateMachine(),
            "dispatcher": FullDispatcher(),
            "propose": self.propose,
            "wall_clock_ms": lambda: 1,
        }
        services = Services(**parts)
        nouns = (Jobs(services), Executions(services), Claims(services))
        self.application = Application(
            [route for noun in nouns for route in noun.routes()],
            serving=lambda: True,
            has_room=lambda: True,
            applied_index=lambda: 7,
            forwarder=Forwarder(lambda: None, "http://here"),
        )

    async def propose(self, _operation: object) -> Any:
        raise self.errors.pop(0)

    async def post(self, path: str, body: object) -> Response:
        headers = {"content-type": "application/json"}
        return await self.application.handle(
            Request("POST", path, headers=headers, body=msgspec.json.encode(body))
        )


def problem(response: Response) -> Problem:
    return msgspec.json.decode(response.body, type=Problem)


@pytest.mark.parametrize("error", [Overloaded(), Expired()])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/jobs", {}),
        ("/v1/jobs/batch", {"jobs": [{}] * 3}),
        ("/v1/executions/4096-1/complete", {"token": 1}),
        ("/v1/executions/complete", {"items": [HOLD] * 3}),
        ("/v1/executions/4096-1/fail", {"token": 1}),
        ("/v1/executions/fail", {"items": [HOLD] * 3}),
        ("/v1/executions/release", {"items": [HOLD] * 3}),
    ],
)
async def test_a_full_log_refuses(tmp_path: Any, path: str, body: object, error: Exception) -> None:
    desk = Desk(tmp_path)
    desk.errors = [error]
    response = await desk.post(path, body)
    assert (response.status, response.headers["Retry-After"]) == (503, "1")
    assert problem(response).type.endswith(":overloaded")
    assert problem(response).outcome == "not_applied"
    assert problem(response).retry_after_ms > 0


async def test_one_claim_too_many_is_refused(tmp_path: Any) -> None:
    response = await Desk(tmp_path).post("/v1/claims", {"worker": "w"})
    assert (response.status, response.headers["Retry-After"]) == (429, "1")
    assert problem(response).outcome == "not_applied"


async def test_a_large_batch_that_has_no_room_at_all_is_not_applied(tmp_path: Any) -> None:
    desk = Desk(tmp_path)
    jobs = {"jobs": [{"payload": "x" * 60_000}] * 8}
    desk.errors = [Overloaded(), Overloaded()]
    response = await desk.post("/v1/jobs/batch", jobs)
    assert not desk.errors, "it travels in two parts"
    assert response.status == 503
    assert problem(response).outcome == "not_applied"
