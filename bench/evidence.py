"""A finished run, indexed: the recorded history and the cluster's final answers.

Checkers and metrics read a run and nothing else. They know the protocol, and nothing of
how the cluster works inside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from typing import TypeVar

import msgspec

from timeball.bench.history import (
    AnyEvent,
    CancelAcknowledged,
    CreateSent,
    Delivered,
    Event,
    FinalAnswers,
    JobAcknowledged,
    ReportAnswered,
)
from timeball.client.messages import ExecutionView, JobView, Schedule

E = TypeVar("E", bound=Event)


def instant_ms(text: str) -> int:
    """Convert an RFC 3339 instant to epoch milliseconds; raises ValueError without an offset."""
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError(f"no offset: {text}")
    return round(instant.timestamp() * 1000)


class Creation(msgspec.Struct, frozen=True):
    """How a job came to be, as its creator saw it: between `sent_us` and `acked_us`."""

    job_id: str
    label: str
    schedule: Schedule | None
    sent_us: int
    acked_us: int
    next_fires: list[str]


class Run:
    """The history and the final answers, with the indexes that checkers share."""

    def __init__(self, events: Sequence[AnyEvent], final: FinalAnswers) -> None:
        self.events = events
        self.final = final

    def of(self, kind: type[E]) -> list[E]:
        """Return all events of a kind, in order of time."""
        return [event for event in self.events if isinstance(event, kind)]

    @cached_property
    def creations(self) -> dict[str, Creation]:
        """Every acknowledged job, by id, with the answer that came first.

        A request may have been sent more than once before it was answered, and any of them
        may have made the job: it was sent when it was first sent.
        """
        first_sent: dict[str, int] = {}
        for sent in self.of(CreateSent):
            first_sent.setdefault(sent.request_id, sent.at_us)
        creations: dict[str, Creation] = {}
        for ack in self.of(JobAcknowledged):
            known = creations.get(ack.job_id)
            sent_us = min(ack.sent_us, first_sent.get(ack.request_id, ack.sent_us))
            creations[ack.job_id] = Creation(
                job_id=ack.job_id,
                label=known.label if known else ack.label,
                schedule=known.schedule if known else ack.schedule,
                sent_us=min(known.sent_us, sent_us) if known else sent_us,
                acked_us=known.acked_us if known else ack.at_us,
                next_fires=known.next_fires if known else ack.next_fires,
            )
        return creations

    @cached_property
    def cancels(self) -> dict[str, CancelAcknowledged]:
        """The first acknowledged cancel of each job that one had an effect on."""
        cancels: dict[str, CancelAcknowledged] = {}
        for ack in self.of(CancelAcknowledged):
            if ack.status != "finished":
                cancels.setdefault(ack.job_id, ack)
        return cancels

    @cached_property
    def deliveries(self) -> dict[str, list[Delivered]]:
        """Deliveries of each execution, in the order in which they were received."""
        deliveries: dict[str, list[Delivered]] = defaultdict(list)
        for delivery in self.of(Delivered):
            deliveries[delivery.execution_id].append(delivery)
        return dict(deliveries)

    @cached_property
    def answers(self) -> dict[str, list[ReportAnswered]]:
        """Answered reports on each execution, in the order in which the answers came."""
        answers: dict[str, list[ReportAnswered]] = defaultdict(list)
        for answer in self.of(ReportAnswered):
            answers[answer.execution_id].append(answer)
        return dict(answers)

    @cached_property
    def jobs(self) -> dict[str, JobView]:
        """The final view of every job."""
        return {job.job_id: job for job in self.final.jobs}

    @cached_property
    def executions(self) -> dict[str, ExecutionView]:
        """The final view of every execution."""
        return {execution.execution_id: execution for execution in self.final.executions}

    @cached_property
    def executions_by_job(self) -> dict[str, list[ExecutionView]]:
        """The final views of each job's executions, as listed."""
        by_job: dict[str, list[ExecutionView]] = defaultdict(list)
        for execution in self.final.executions:
            by_job[execution.job_id].append(execution)
        return dict(by_job)
