"""Batches of reports: each item has its own answer, whatever the others name."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from timeball.cluster.http.exchange import Request
from timeball.cluster.http.executions import Executions

NAMES_NOTHING = "no execution"


def items(*execution_ids):
    return {"items": [{"execution_id": text, "token": 4096} for text in execution_ids]}


async def test_answers_stand_in_the_order_of_the_items(desk, log) -> None:
    hold, token = log.claimed()
    real = f"{hold[0]}-{hold[1]}"
    batch = items(NAMES_NOTHING, real, "7-7", NAMES_NOTHING)
    batch["items"][1]["token"] = token
    reply = await desk.ask("POST", "/v1/executions/start", batch)
    told = [(one["execution_id"], one["verdict"]) for one in reply.body["results"]]
    assert told == [
        (NAMES_NOTHING, "unknown"),
        (real, "accepted"),
        ("7-7", "unknown"),
        (NAMES_NOTHING, "unknown"),
    ]


@pytest.mark.parametrize("others", [(), (NAMES_NOTHING,)])
async def test_a_report_without_a_verdict_is_an_error(others) -> None:
    """A defect, to be told: a `next` that finds nothing would end what is compiled in silence."""

    async def propose(_operation):
        return []

    services = SimpleNamespace(propose=propose)
    routes = {route.pattern: route.handler for route in Executions(services).routes()}
    target, body = "/v1/executions/start", msgspec.json.encode(items("1-1", *others))
    request = Request("POST", target, "", {}, body, body_form="json")
    with pytest.raises(ValueError, match="zip"):
        await routes[target](request)
