"""The definition of a job as it is asked for, in the terms of the log; and jobs by their path."""

from __future__ import annotations

import functools
from typing import NamedTuple

from timeball.client import messages
from timeball.client.errors import InvalidRequest
from timeball.cluster.http.codec import fingerprint, pack_value
from timeball.cluster.http.exchange import Request
from timeball.cluster.http.refusals import no_such_job
from timeball.cluster.http.schedules import read_schedule
from timeball.cluster.http.services import Services
from timeball.cluster.state import operations
from timeball.cluster.state.records import Job

_OVERHEAD_BYTES = 1_024
_RULE_BYTES = 350
"""Of a rule or an exclusion at most, besides its times or days…"""
_TIME_BYTES = 9
"""… of which each takes this."""


class Built(NamedTuple):
    """The operation for one job; `over` says why the state will refuse to create it anew.

    That the timetable is over is no reason not to ask: the request may be the repeat of one that
    made its job in time.
    """

    job: operations.NewJob
    over: InvalidRequest | None


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
    plan = read_schedule(body.schedule, prefix, now_ms, former=former)
    if not repeatable:
        plan.settled()
    policy = read_policy(body.retry)
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
        )
    job = operations.NewJob(
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
    )
    return Built(job, plan.over)


@functools.lru_cache(maxsize=1024)
def read_policy(retry: messages.Retry) -> operations.RetryPolicy | None:
    """Most jobs have one of a few policies, if not the default (None)."""
    policy = operations.RetryPolicy(
        retry.max_attempts,
        retry.initial_ms,
        retry.multiplier_pct,
        retry.max_ms,
        retry.jitter_pct,
    )
    return None if policy == operations.RetryPolicy() else policy


def weight_of(job: operations.NewJob) -> int:
    """About how many bytes a job takes in the log, rather more than less."""
    weight = len(job.payload) + _OVERHEAD_BYTES
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
