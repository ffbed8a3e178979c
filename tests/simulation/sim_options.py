"""Jobs that expire or require something, and the judge of what became of them.

The judge knows what submitters asked for and what workers offered, and holds that against what
workers got and what the cluster says in the end of each attempt. Log-time decides about expiry, so
the times of attempts are taken as the cluster tells them.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from timeball.bench.evidence import instant_ms
from timeball.bench.history import FinalAnswers
from timeball.client import messages

OFFERS = ((), ("gpu",), ("eu", "gpu"), ("eu", "gpu", "ssd"))


def draw_from(rng: random.Random) -> random.Random:
    """Chance of its own, made of another's: that one's draws stay what they were."""
    return random.Random(str(rng.getstate()[1][:8]))


def with_options(job: messages.NewJob, rng: random.Random) -> messages.NewJob:
    """The same job, or one that asks for more."""
    chance = rng.random()
    asked: dict[str, Any] = {}
    if chance < 0.2:
        asked["requires"] = rng.choice([("gpu",), ("eu", "gpu"), ("ssd",)])
    if 0.3 < chance < 0.7:
        asked["concurrency_key"] = "ab"[int(chance * 1_000) % 2]
    if 0.1 < chance < 0.35:
        asked["expires_after_ms"] = rng.choice([1, 100, 400, 1_500, 4_000])
    if isinstance(job.schedule, messages.At) and rng.random() < 0.1:
        assert isinstance(job.schedule.time, int)
        asked["expires_at"] = job.schedule.time + rng.choice([1, 300, 2_000])
    return msgspec.structs.replace(job, **asked)


class Demands:
    """What was asked for, by job, and the judge of it."""

    def __init__(self) -> None:
        self.examined = 0
        self.violations: list[str] = []
        self.skipped = 0
        """Executions that expired, in the end."""
        self._jobs: dict[str, messages.NewJob] = {}
        self._handed: list[tuple[messages.Delivery, tuple[str, ...]]] = []

    def created(self, job_id: str, job: messages.NewJob) -> None:
        self._jobs.setdefault(job_id, job)

    def handed(self, delivery: messages.Delivery, offered: tuple[str, ...]) -> None:
        """A worker that offered these tags got an execution; its job may not be known yet."""
        self._handed.append((delivery, offered))

    def judge(self, final: FinalAnswers) -> list[str]:
        """All that is not as it was asked for."""
        for delivery, offered in self._handed:
            job = self._jobs.get(delivery.job_id)
            if job is not None and job.requires:
                self.examined += 1
                if not set(job.requires) <= set(offered):
                    self.violations.append(
                        f"requires: {delivery.execution_id}: {offered} got what requires"
                        f" {job.requires}"
                    )
        for view in final.executions:
            self._judge_expiry(view)
        return self.violations

    def _judge_expiry(self, view: messages.ExecutionView) -> None:
        job = self._jobs.get(view.job_id)
        expired = (view.state, view.reason) == ("skipped", "expired")
        self.skipped += expired
        if job is None:
            return
        bounds = [] if job.expires_at is None else [instant_ms_of(job.expires_at)]
        if job.expires_after_ms is not None:
            bounds.append(instant_ms(view.nominal_at) + job.expires_after_ms)
        if not bounds:
            if expired:
                self.violations.append(f"expiry: {view.execution_id}: expired, and never expires")
            return
        self.examined += 1
        for attempt in view.attempts:
            if instant_ms(attempt.claimed_at) >= min(bounds):
                self.violations.append(
                    f"expiry: {view.execution_id}: attempt {attempt.number} claimed at"
                    f" {attempt.claimed_at}, not before {min(bounds)} ms"
                )


def instant_ms_of(instant: str | int) -> int:
    return instant if isinstance(instant, int) else instant_ms(instant)
