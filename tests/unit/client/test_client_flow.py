"""One request's way over several attempts, driven by hand: no sockets, no time."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from timeball.client import errors
from timeball.client.failover import Backoff, Nodes, Trouble
from timeball.client.flow import (
    Call,
    NoReply,
    Pause,
    Policy,
    Reply,
    Send,
    encode_request,
    flow,
    in_batches,
)
from timeball.client.messages import MAX_BATCH, MAX_BODY_BYTES, JobCancelled, JobView

CREATE = Call("POST", "/v1/jobs", JobCancelled, b"body", request_id="r1")
READ = Call("GET", "/v1/jobs/1", JobView, writes=False)
DONE = Reply(
    200, "application/msgpack", msgspec.msgpack.encode({"job_id": "1", "status": "cancelled"})
)


def problem(code: str, status: int, retry_after: str = "", **fields: object) -> Reply:
    document = {"type": errors.PROBLEM_PREFIX + code, "title": "t", "status": status, **fields}
    body = msgspec.msgpack.encode(document)
    return Reply(status, "application/problem+msgpack", body, retry_after)


class Drive:
    """Plays answers to a flow in virtual time; keeps what it sent and paused."""

    def __init__(self, call, *answers, timeout_ms=10_000, attempt_timeout_ms=5_000, rng=None):
        self.now_ms = 0
        self.sent: list[Send] = []
        self.paused: list[int] = []
        self.value = None
        policy = Policy(
            Nodes(["http://a", "http://b"]), Backoff(), rng or Random(1), lambda: self.now_ms
        )
        steps = flow(call, policy, timeout_ms, attempt_timeout_ms)
        waiting = list(answers)
        step = next(steps)
        try:
            while True:
                if isinstance(step, Pause):
                    self.paused.append(step.pause_ms)
                    self.now_ms += step.pause_ms
                    step = steps.send(None)
                    continue
                self.sent.append(step)
                answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
                if isinstance(answer, NoReply) and answer.trouble is Trouble.TIMED_OUT:
                    self.now_ms += step.timeout_ms
                step = steps.send(answer)
        except StopIteration as stop:
            self.value = stop.value


BROKEN = NoReply(Trouble.BROKEN, "reset")
REFUSED = NoReply(Trouble.UNREACHABLE, "refused")
SILENT = NoReply(Trouble.TIMED_OUT, "late")


def test_a_repeat_keeps_method_body_and_request_id() -> None:
    drive = Drive(CREATE, BROKEN, problem("outcome-unknown", 503), SILENT, DONE)
    assert drive.value == JobCancelled(job_id="1", status="cancelled")
    assert len(drive.sent) == 4
    assert {(s.method, s.path, s.body) for s in drive.sent} == {("POST", "/v1/jobs", b"body")}
    assert {s.headers["Timeball-Request-Id"] for s in drive.sent} == {"r1"}
    assert {s.url for s in drive.sent} == {"http://a", "http://b"}


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("invalid-request", 400, errors.InvalidRequest),
        ("idempotency-key-reused", 422, errors.KeyReused),
        ("too-large", 413, errors.TooLarge),
        ("not-found", 404, errors.NotFound),
        ("method-not-allowed", 405, errors.MethodNotAllowed),
        ("not-acceptable", 406, errors.NotAcceptable),
        ("unsupported-media-type", 415, errors.UnsupportedMediaType),
        ("conflict", 409, errors.Conflict),
        ("lease-lost", 409, errors.LeaseLost),
        ("precondition-failed", 412, errors.PreconditionFailed),
    ],
)
def test_a_final_answer_is_raised_and_never_repeated(code, status, kind) -> None:
    fields = [{"field": "jobs[3].priority", "detail": "Expected `int`"}]
    with pytest.raises(errors.TimeballError) as caught:
        Drive(CREATE, problem(code, status, errors=fields))
    assert type(caught.value) is kind
    assert caught.value.errors[0].field == "jobs[3].priority"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("overloaded", 429),
        ("overloaded", 503),
        ("no-leader", 503),
        ("outcome-unknown", 503),
        ("internal-error", 500),
    ],
)
def test_a_passing_trouble_is_repeated(code, status) -> None:
    assert Drive(CREATE, problem(code, status), DONE).value is not None


def test_what_may_have_happened_is_never_reported_as_not_done() -> None:
    """A reset, then only refusals: the first attempt may have been committed (IDEM-04)."""
    with pytest.raises(errors.OutcomeUnknown):
        Drive(CREATE, BROKEN, REFUSED)
    with pytest.raises(errors.OutcomeUnknown):
        Drive(CREATE, SILENT, problem("no-leader", 503))


def test_what_certainly_did_not_happen_says_so() -> None:
    with pytest.raises(errors.Unavailable):
        Drive(CREATE, REFUSED)
    with pytest.raises(errors.Unavailable):
        Drive(CREATE, problem("no-leader", 503))
    with pytest.raises(errors.Overloaded):
        Drive(CREATE, problem("overloaded", 429))


def test_a_read_has_no_outcome_to_be_unknown() -> None:
    with pytest.raises(errors.Unavailable):
        Drive(READ, SILENT)
    with pytest.raises(errors.Unavailable):
        Drive(READ, Reply(502, "text/html", b"<html>"))


def test_a_node_that_hangs_uses_up_half_of_the_time_at_most() -> None:
    drive = Drive(CREATE, SILENT, DONE, timeout_ms=1_000)
    assert [send.timeout_ms for send in drive.sent] == [500, 500]
    assert drive.value is not None


def test_a_long_poll_may_take_its_wait_on_top() -> None:
    poll = Call("POST", "/v1/claims", JobCancelled, b"", wait_ms=4_000)
    drive = Drive(poll, SILENT, DONE, timeout_ms=1_000)
    assert [send.timeout_ms for send in drive.sent] == [4_500, 500]


def test_the_whole_call_keeps_to_its_deadline() -> None:
    with pytest.raises(errors.Unavailable) as caught:
        Drive(CREATE, REFUSED, timeout_ms=3_000)
    assert "attempts)" in str(caught.value)


def test_retry_after_in_seconds_is_honoured_and_milliseconds_are_finer() -> None:
    assert Drive(CREATE, problem("overloaded", 503, "2"), DONE).paused[0] >= 2_000
    fine = Drive(CREATE, problem("overloaded", 503, "2", retry_after_ms=300), DONE).paused[0]
    assert 300 <= fine <= 400


def test_http_09_a_redirect_is_not_followed() -> None:
    with pytest.raises(errors.TimeballError, match="302"):
        Drive(CREATE, Reply(302, "text/html", b""))


def test_a_gateway_in_between_may_have_passed_the_request_on() -> None:
    with pytest.raises(errors.OutcomeUnknown):
        Drive(CREATE, Reply(502, "text/html", b"<html>"))
    assert Drive(CREATE, Reply(504, "text/html", b""), DONE).value is not None


def test_a_problem_that_is_not_known_here_is_read_with_caution() -> None:
    with pytest.raises(errors.OutcomeUnknown):
        Drive(CREATE, problem("newer-than-this-client", 507))
    with pytest.raises(errors.TimeballError, match="t"):
        Drive(CREATE, problem("newer-than-this-client", 451))


def test_an_unreadable_answer_is_named() -> None:
    with pytest.raises(errors.InternalError, match="JobCancelled"):
        Drive(CREATE, Reply(200, "application/msgpack", b"\xc1"))
    with pytest.raises(errors.OutcomeUnknown, match="Problem"):
        Drive(CREATE, Reply(500, "application/problem+msgpack", b"\xc1"))


def test_json_is_understood() -> None:
    answer = Reply(200, "application/json", b'{"job_id": "1", "status": "finished", "new": 1}')
    assert Drive(CREATE, answer).value.status == "finished"


def test_batches_keep_to_the_number_of_items() -> None:
    sizes = [len(batch) for batch in in_batches(range(2 * MAX_BATCH + 1))]
    assert sizes == [MAX_BATCH, MAX_BATCH, 1]
    assert list(in_batches([])) == []


def test_batches_keep_to_the_size_of_a_body() -> None:
    batches = list(in_batches(b"x" * 60_000 for _ in range(300)))
    assert sum(map(len, batches)) == 300
    assert all(len(encode_request({"items": batch})) <= MAX_BODY_BYTES for batch in batches)
    assert len(batches) == 5


def test_what_cannot_be_encoded_is_an_invalid_request() -> None:
    for bad in (object(), "\ud800", 2**80, {1.5: object()}):
        with pytest.raises(errors.InvalidRequest, match="cannot be encoded"):
            encode_request(bad)


def test_a_node_that_is_behind_is_left_for_another_at_once() -> None:
    behind = problem("not-caught-up", 503, retry_after="1")
    drive = Drive(READ._replace(answer=JobCancelled), behind, DONE)
    assert [send.url for send in drive.sent] == ["http://a", "http://b"]
    assert not drive.paused
    with pytest.raises(errors.NotCaughtUp):
        Drive(READ, behind, timeout_ms=50)


UPDATE = Call("PATCH", "/v1/jobs/1", JobCancelled, b"body", if_version=7)
OTHER_VERSION = problem("precondition-failed", 412, detail="the job is at version 8")


def test_a_change_names_the_version_that_it_is_meant_for_on_every_attempt() -> None:
    drive = Drive(UPDATE, BROKEN, REFUSED, DONE)
    assert [s.headers["If-Match"] for s in drive.sent] == ['"7"'] * 3
    assert "If-Match" not in Drive(CREATE, DONE).sent[0].headers


def test_another_version_is_a_failed_precondition_at_the_first_answer() -> None:
    with pytest.raises(errors.PreconditionFailed, match="at version 8") as caught:
        Drive(UPDATE, REFUSED, problem("overloaded", 503), OTHER_VERSION)
    assert (caught.value.http_status, caught.value.outcome) == (412, "not_applied")


@pytest.mark.parametrize("lost", [BROKEN, SILENT, problem("outcome-unknown", 503)])
def test_another_version_after_a_lost_answer_may_be_by_that_attempt(lost: object) -> None:
    with pytest.raises(errors.OutcomeUnknown, match="at version 8") as caught:
        Drive(UPDATE, lost, OTHER_VERSION)
    assert isinstance(caught.value.__cause__, errors.PreconditionFailed)
