"""The definition of a job as it is asked for, in the terms of the log; and jobs by their path."""

from __future__ import annotations

import functools
from typing import Final, NamedTuple

from mypy_extensions import mypyc_attr

from timeball.client import messages
from timeball.client.errors import InvalidRequest
from timeball.cluster.http.codec import fingerprint
from timeball.cluster.http.exchange import Request
from timeball.cluster.http.options import read_options, weight_of_options
from timeball.cluster.http.refusals import no_such_job
from timeball.cluster.http.schedules import read_schedule
from timeball.cluster.http.services import Services
from timeball.cluster.http.values import pack_value
from timeball.cluster.state import operations
from timeball.cluster.state.records import Job
from timeball.cluster.state.usual import DEFAULT_POLICY, PLAIN_KEY

# Names of the module: an attribute of another one is looked up at each use.
_NewJob: Final = operations.NewJob
_USUAL_RETRY: Final = messages.NewJob().retry
"""Of a job that says nothing of retries: the default itself, so nothing has to be compared."""
_OVERHEAD_BYTES: Final = 1_024
_RULE_BYTES: Final = 350
"""Of a rule or an exclusion at most, besides its times or days…"""
_TIME_BYTES: Final = 9
"""… of which each takes this."""


@mypyc_attr(acyclic=True)
class Built:
    """The operation for one job; `over` says why the state will refuse to create it anew.

    That the timetable is over is no reason not to ask: the request may be the repeat of one that
    made its job in time.
    """

    __slots__ = ("job", "over")

    def __init__(self, job: operations.NewJob, over: InvalidRequest | None) -> None:
        self.job: Final = job
        self.over: Final = over


def build_job(
    services: Services,
    body: messages.NewJob | messages.JobPut,
    prefix: str,
    key: str,
    now_ms: int,
    former: operations.Timetable | None = None,
    *,
    repeatable: bool = False,
) -> Built:
    """The operation for one job, which may have had another timetable before.

    `repeatable`: the log can tell whether the request is a repeat. Raises InvalidRequest, NotFound
    or TooLarge, naming the field after `prefix`.
    """
    services.require_queue(body.queue, prefix)
    rule = None
    if isinstance(body, messages.NewJob) and body.idempotency is not None:
        longest_ms = services.state.settings.idempotency_max_window_ms
        rule = _read_key_rule(body.idempotency, f"{prefix}idempotency", key, longest_ms)
    plan = read_schedule(body.schedule, prefix, now_ms, former=former)
    if not repeatable:
        plan.settled()
    policy = read_policy(body.retry, prefix)
    options = read_options(body, plan, prefix)
    payload = pack_value(body.payload, f"{prefix}payload")
    mark = b""
    if key:
        mark = fingerprint(
            body.queue,
            body.payload,
            plan.meaning,
            body.priority,
            body.partition_key,
            policy,
            body.timeout_ms,
            *(() if options is None else (options,)),
        )
    job = _NewJob(
        body.queue,
        payload,
        plan.first_ms,
        plan.delay_ms,
        plan.timetable,
        body.priority,
        body.partition_key,
        policy,
        body.timeout_ms or 0,
        key,
        mark,
        options,
        key_rule=rule,
    )
    return Built(job, plan.over)


def _read_key_rule(
    asked: messages.Idempotency, field: str, key: str, longest_ms: int
) -> operations.KeyRule | None:
    """How a key is to hold, in the terms of the log; None for the default."""
    if not key:
        raise InvalidRequest.at(field, "it goes with an idempotency key")
    until_ended = asked.until == "job_ends"
    window_ms = asked.window_ms or 0
    if window_ms and until_ended:
        detail = "a key that holds until its job has ended has no window"
        raise InvalidRequest.at(f"{field}.window_ms", detail)
    if window_ms > longest_ms:
        detail = f"the cluster allows for {longest_ms} ms at most (idempotency_max_window_ms)"
        raise InvalidRequest.at(f"{field}.window_ms", detail)
    within_queue, reject = asked.scope == "queue", asked.on_duplicate == "reject"
    rule = operations.KeyRule(window_ms, within_queue, reject, until_ended)
    return None if rule == PLAIN_KEY else rule


def read_policy(retry: messages.Retry, prefix: str) -> operations.RetryPolicy | None:
    """The policy in the terms of the log; None for the default.

    Raises InvalidRequest, naming the field after `prefix`, for parts that contradict each other.
    """
    if retry is _USUAL_RETRY:
        return None
    policy = _policy(retry)
    if isinstance(policy, _Contradiction):
        raise InvalidRequest.at(f"{prefix}retry.{policy.field}", policy.detail)
    return policy


class _Contradiction(NamedTuple):
    field: str
    detail: str


@functools.lru_cache(maxsize=1024)
def _policy(retry: messages.Retry) -> operations.RetryPolicy | _Contradiction | None:
    """Most jobs have one of a few policies."""
    if retry.backoff != operations.LIST:
        if retry.delays_ms:
            return _Contradiction("delays_ms", 'they go with the backoff "list" alone')
        longest_ms = retry.initial_ms
    elif not retry.delays_ms:
        return _Contradiction("delays_ms", 'the backoff "list" needs at least one delay')
    else:
        longest_ms = max(retry.delays_ms)
    if longest_ms > retry.max_ms:
        return _Contradiction(
            "max_ms", f"the policy has a delay of {longest_ms} ms, and {retry.max_ms} caps it"
        )
    policy = operations.RetryPolicy(
        retry.max_attempts,
        retry.initial_ms,
        retry.multiplier_pct,
        retry.max_ms,
        retry.jitter_pct,
        retry.backoff,
        retry.delays_ms,
        retry.non_retryable_errors,
    )
    return None if policy == DEFAULT_POLICY else policy


def weight_of(job: operations.NewJob) -> int:
    """About how many bytes a job takes in the log, rather more than less."""
    weight = len(job.payload) + _OVERHEAD_BYTES + weight_of_options(job.options)
    if job.retry is not None:
        weight += sum(4 * len(name) for name in job.retry.non_retryable_errors)
    if job.timetable is not None:
        for rule in job.timetable.rules:
            times = len(rule.times_ms) if isinstance(rule, operations.At) else 0
            weight += _RULE_BYTES + _TIME_BYTES * times
        for exclusion in job.timetable.exclusions:
            days = len(exclusion.days) if isinstance(exclusion, operations.Dates) else 0
            weight += _RULE_BYTES + 2 * _TIME_BYTES * days
    return weight


def read_job_id(request: Request) -> int:
    """The job that the path names; raises NotFound for what can name none."""
    try:
        return messages.decode_job_id(request.parameters["job_id"])
    except ValueError as error:
        raise no_such_job(request) from error


async def find_job(services: Services, request: Request) -> Job:
    """The job that the path names, as the leader has it; raises NotFound.

    That it is not there is said only once it is certain that this node leads.
    """
    job_id = read_job_id(request)
    job = services.state.job(job_id)
    if job is None:
        await services.wait_until_fresh({"consistency": "strong"})
        job = services.state.job(job_id)
    if job is None:
        raise no_such_job(request)
    return job
