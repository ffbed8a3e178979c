"""Request ids: the header is checked wherever it is sent, and a field of the body counts."""

from __future__ import annotations

import pytest

BATCH = {"jobs": [{}]}
BAD = ["", "x" * 65, "a\x7fb", "\udc80"]


@pytest.mark.parametrize("header", BAD)
@pytest.mark.parametrize(
    ("target", "body"),
    [
        ("/v1/jobs", {}),
        ("/v1/jobs/batch", BATCH),
        ("/v1/jobs/batch", BATCH | {"request_id": "good"}),
        ("/v1/claims", {"worker": "w"}),
        ("/v1/claims", {"worker": "w", "request_id": "good"}),
    ],
)
async def test_a_bad_header_is_refused_by_its_name(desk, target, body, header) -> None:
    reply = await desk.ask("POST", target, body, timeball_request_id=header)
    assert (reply.status, reply.field) == (400, "timeball-request-id")
    assert not desk.proposed


async def test_of_two_request_ids_that_of_the_body_counts(desk) -> None:
    body = BATCH | {"request_id": "inner"}
    first = await desk.ask("POST", "/v1/jobs/batch", body, timeball_request_id="outer")
    again = await desk.ask("POST", "/v1/jobs/batch", body, timeball_request_id="another")
    assert first.body["results"][0]["job_id"] == again.body["results"][0]["job_id"]
    other = await desk.ask("POST", "/v1/jobs/batch", BATCH, timeball_request_id="outer")
    assert other.body["results"][0]["job_id"] != first.body["results"][0]["job_id"]
