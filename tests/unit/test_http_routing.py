"""Routes, query parameters, cursors and problem documents."""

from __future__ import annotations

import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeball.client.errors import (
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    Overloaded,
    from_problem,
)
from timeball.client.messages import Problem
from timeball.cluster.http import paging
from timeball.cluster.http.exchange import Answered, Request
from timeball.cluster.http.executions import that_fit
from timeball.cluster.http.problems import as_timeball_error, problem_response
from timeball.cluster.http.routes import Route, Router
from timeball.cluster.raft import errors as consensus
from timeball.cluster.state.operations import RetryPolicy
from timeball.cluster.state.records import Attempt, Execution, Job
from timeball.cluster.state.values import AttemptError


async def nothing(_request: Request) -> Answered:
    raise AssertionError("the router calls no handler")


ROUTER = Router(
    Route(method=method, pattern=pattern, handler=nothing)
    for method, pattern in [
        ("GET", "/v1/jobs"),
        ("POST", "/v1/jobs"),
        ("POST", "/v1/jobs/batch"),
        ("GET", "/v1/jobs/{job_id}"),
        ("DELETE", "/v1/jobs/{job_id}"),
        ("POST", "/v1/jobs/{job_id}/cancel"),
    ]
)


def test_literal_paths_win_over_patterns() -> None:
    assert ROUTER.find("POST", "/v1/jobs/batch")[0].pattern == "/v1/jobs/batch"
    with pytest.raises(MethodNotAllowed) as caught:
        ROUTER.find("GET", "/v1/jobs/batch")  # no job is named so
    assert caught.value.allow == "POST"
    assert ROUTER.find("GET", "/v1/jobs/bat%63h")[1] == {"job_id": "batch"}


def test_what_is_there_to_get_is_there_to_head() -> None:
    for path in ("/v1/jobs", "/v1/jobs/1"):
        assert ROUTER.find("HEAD", path) == ROUTER.find("GET", path)
    with pytest.raises(MethodNotAllowed) as caught:
        ROUTER.find("HEAD", "/v1/jobs/batch")
    assert caught.value.allow == "POST"


def test_parts_of_the_path_are_decoded() -> None:
    assert ROUTER.find("GET", "/v1/jobs/a%2Fb%20c")[1] == {"job_id": "a/b c"}
    with pytest.raises(InvalidRequest, match="job_id"):
        ROUTER.find("GET", "/v1/jobs/%ff")


@pytest.mark.parametrize("path", ["/", "", "/v1/jobs/", "/v1/jobs/1/2/3", "/v2/jobs", "/" * 5000])
def test_unknown_paths(path: str) -> None:
    with pytest.raises(NotFound):
        ROUTER.find("GET", path)


def test_a_wrong_method_is_told_the_right_ones() -> None:
    with pytest.raises(MethodNotAllowed) as caught:
        ROUTER.find("PUT", "/v1/jobs/1")
    response = problem_response(caught.value, "json")
    assert response.status == 405
    assert response.headers["Allow"] == "DELETE, GET, HEAD"
    assert b"PUT is no method of this path, which takes DELETE, GET, HEAD" in response.body


def test_queries() -> None:
    known = ("queue", "limit")
    assert paging.read_query("", known) == {}
    assert paging.read_query("queue=a%20b&limit=", known) == {"queue": "a b", "limit": ""}
    for query, field in [
        ("colour=1", "colour"),
        ("=1", "query"),
        ("queue=a&queue=b", "queue"),
        ("queue", "query"),
        ("&".join(["queue=a"] * 50), "query"),
        ("queue=%ff", "query"),
    ]:
        with pytest.raises(InvalidRequest) as caught:
            paging.read_query(query, known)
        assert caught.value.errors[0].field == field


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "1e3", "1.0", "", "true", "٣", "10000000000"])
def test_limits_out_of_range(limit: str) -> None:
    with pytest.raises(InvalidRequest, match="limit"):
        paging.read_limit({"limit": limit})


def test_parameters_that_name_things() -> None:
    assert paging.read_limit({}) == paging.DEFAULT_LIMIT
    assert paging.read_limit({"limit": "1000"}) == 1000
    assert paging.read_job({"job": "12"}) == 12
    assert paging.read_queue({"queue": "mail.out"}) == "mail.out"
    for read, parameters in [
        (paging.read_job, {"job": "x"}),
        (paging.read_queue, {"queue": "a b"}),
    ]:
        with pytest.raises(InvalidRequest):
            read(parameters)
    with pytest.raises(InvalidRequest, match="expected one of a, b"):
        paging.read_choice({"state": "c"}, "state", ("a", "b"))


def test_a_page_is_bounded_by_bytes_and_holds_at_least_one() -> None:
    most = paging.MAX_PAGE_BYTES
    assert paging.fitting([]) == 0
    assert paging.fitting([most + 1, 1]) == 1
    assert paging.fitting([most // 2, most // 2, 1]) == 2
    assert paging.fitting([1] * 1000) == 1000


@given(st.lists(st.integers(0, 2**53), min_size=2, max_size=2))
def test_a_cursor_leads_back(position: list[int]) -> None:
    text = paging.write_cursor("dead", tuple(position))
    assert text.isascii()
    assert paging.read_cursor({"cursor": text}, "dead", 2) == tuple(position)
    with pytest.raises(InvalidRequest, match="cursor"):
        paging.read_cursor({"cursor": text}, "jobs", 1)


@given(st.text(max_size=120))
def test_other_texts_are_no_cursors(text: str) -> None:
    with pytest.raises(InvalidRequest, match="cursor"):
        paging.read_cursor({"cursor": text}, "dead", 2)


@pytest.mark.parametrize(
    ("error", "status", "code", "outcome"),
    [
        (consensus.NotLeader("b"), 503, "no-leader", "not_applied"),
        (consensus.Overloaded(), 503, "overloaded", "not_applied"),
        (consensus.Expired(), 503, "overloaded", "not_applied"),
        (consensus.DiskFull("x"), 507, "storage-full", "not_applied"),
        (consensus.EntryTooLarge(9, 8), 413, "too-large", "not_applied"),
        (consensus.SnapshotUnderWay(7), 409, "conflict", "not_applied"),
        (consensus.OutcomeUnknown("x"), 503, "outcome-unknown", "unknown"),
        (Overloaded("full", status=429, retry_after_ms=1), 429, "overloaded", "not_applied"),
        (InvalidRequest.at("a", "b"), 400, "invalid-request", "not_applied"),
    ],
)
def test_errors_become_problems(error: Exception, status: int, code: str, outcome: str) -> None:
    public = as_timeball_error(error)
    for form, decode in (("json", msgspec.json.decode), ("msgpack", msgspec.msgpack.decode)):
        response = problem_response(public, form)  # type: ignore[arg-type]
        assert response.status == status
        assert response.content_type == f"application/problem+{form}"
        problem = decode(response.body, type=Problem)  # type: ignore[operator]
        assert problem.type == f"urn:timeball:problem:{code}"
        assert (problem.status, problem.outcome) == (status, outcome)
        assert type(from_problem(problem)) is type(public)


def test_retry_after_is_whole_seconds_rounded_up() -> None:
    response = problem_response(Overloaded("x", retry_after_ms=1001), "json")
    assert response.headers["Retry-After"] == "2"


def test_a_defect_is_logged_and_tells_the_client_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR):
        response = problem_response(as_timeball_error(RuntimeError("secret")), "json")
    assert response.status == 500
    assert b"secret" not in response.body
    assert "RuntimeError: secret" in caplog.text


def test_a_page_of_executions_is_bounded_with_its_results_and_errors() -> None:
    job = Job(1, "q", b"", 1, RetryPolicy(), 5, "", 0, "", executions={})
    small = Execution(job, 1, 1, 1)
    with_result = Execution(job, 1, 1, 1)
    with_result.result = bytes(65_536)
    error = AttemptError("e" * 100, "m" * 1_900, "b" * 8_000)
    failed = Attempt(1, "w", 1, 1)
    failed.error = error
    with_errors = Execution(job, 1, 1, 1)
    with_errors.tries = (failed,) * 25
    assert that_fit([]) == []
    assert len(that_fit([small] * 1_000)) == 1_000
    assert len(that_fit([with_result] * 1_000)) == paging.MAX_PAGE_BYTES // 65_536
    assert len(that_fit([with_errors] * 1_000)) == paging.MAX_PAGE_BYTES // (25 * 10_000)
