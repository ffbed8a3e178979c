"""What each bench of a cluster does with the driver: its plan, its run, its figures."""

from __future__ import annotations

import secrets
import shutil
from collections import Counter
from pathlib import Path

import msgspec

from timeball.bench.load.accounting import out_of_order
from timeball.bench.load.driver import Driver, Observed, RunFailed, Show
from timeball.bench.load.figures import (
    MUST_NOT_BE,
    Figures,
    fire_lag_figures,
    node_figures,
    submitter_figures,
    surroundings,
    worker_figures,
)
from timeball.bench.load.peak import find_peak, probe_figures, shortfalls
from timeball.bench.load.plan import MAX_EXECUTIONS, Mode, Plan

QUEUE = "bench"
LATER_QUEUE = "later"
LATER_MS = 86_400_000
"""Other pending jobs are due from this long ahead, over as long a time."""
CLAIM = 500
POLLERS_UNBATCHED = 64
POLLERS = 32
PRELOAD_JOBS_PER_POST = 500
PRELOAD_MIN_MS = 1_500
PRELOAD_JOBS_PER_S = 5_000
"""A preload is given time as if it went at this rate, which is far below what it reaches."""
DELIVERED_PER_S = 20_000
"""What is due on one instant is watched as if it were delivered at this rate, or for a second."""
HEADROOM = 1_000_000


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What may be asked of any bench of a cluster."""

    urls: list[str] = []
    rate: float = 1_000.0
    seconds: float = 10.0
    warmup_s: float = 3.0
    mode: Mode = "steady"
    workers: int = 2
    submitters: int = 1
    batch: int = 100
    claim: int | None = None
    """Most executions in a claim; None: 1 when `batch` is 1, else `CLAIM`."""
    pending: int = 0
    kill_leader_every_s: float = 0.0
    snapshot_meanwhile: bool = False
    executions: int = 10_000
    keyed: bool = False
    """Whether each of the other pending jobs has an idempotency key."""
    lowest: float = 10_000.0
    highest: float = 60_000.0
    p99_ms: float = 25.0

    @property
    def limits(self) -> dict[str, int]:
        """Limits of the cluster under which the run fits."""
        return {
            "max_pending": self.pending + self.executions + self.total + HEADROOM,
            "idempotency_keys": self.pending + HEADROOM,
        }

    @property
    def total(self) -> int:
        """Executions of the open loop, warm-up included."""
        return int(self.rate * (self.warmup_s + self.seconds))


def make_plan(driver: Driver, options: Options, **other: object) -> Plan:
    """The plan of the options, with a name that no other run has; `other` goes first."""
    claim = options.claim or (1 if options.batch == 1 else CLAIM)
    fields: dict[str, object] = {
        "urls": driver.urls,
        "folder": str(driver.folder),
        "name": secrets.token_hex(4),
        "queue": f"{QUEUE}-{secrets.token_hex(3)}",
        "mode": options.mode,
        "submitters": options.submitters,
        "workers": options.workers,
        "jobs_per_post": options.batch,
        "executions_per_claim": claim,
        "pollers": POLLERS_UNBATCHED if claim == 1 else POLLERS,
        **other,
    }
    plan = msgspec.convert(fields, Plan)
    if plan.total > MAX_EXECUTIONS:
        raise RunFailed(f"{plan.total} executions are more than {MAX_EXECUTIONS}")
    return plan


def _preload_ms(total: int) -> int:
    return PRELOAD_MIN_MS + total * 1000 // PRELOAD_JOBS_PER_S


async def fill(driver: Driver, options: Options) -> None:
    """Have so many other jobs pending, due far ahead."""
    if not options.pending:
        return
    plan = make_plan(
        driver,
        options,
        queue=LATER_QUEUE,
        keyed=options.keyed,
        total=options.pending,
        rate=options.pending * 1000 / LATER_MS,
        mode="preloaded",
        workers=0,
        jobs_per_post=PRELOAD_JOBS_PER_POST,
    )
    observed = await driver.run(plan, lead_ms=LATER_MS, window_s=(-LATER_MS / 1000,) * 2)
    account = observed.merged.account
    if account.acknowledged != options.pending:
        raise RunFailed(f"only {account.acknowledged} of {options.pending} other jobs were created")


async def observe_fire_lag(driver: Driver, options: Options) -> Observed:
    """Run the open loop that the options describe."""
    total = options.total
    preloaded = options.mode == "preloaded"
    per_post = max(options.batch, PRELOAD_JOBS_PER_POST) if preloaded else options.batch
    plan = make_plan(driver, options, total=total, rate=options.rate, jobs_per_post=per_post)
    lead_ms = _preload_ms(total) if preloaded else plan.ahead_ms + 1_000
    return await driver.run(
        plan,
        lead_ms=lead_ms,
        window_s=(options.warmup_s, options.warmup_s + options.seconds),
        kill_leader_every_s=options.kill_leader_every_s,
        snapshots=options.snapshot_meanwhile,
    )


async def fire_lag(folder: Path, options: Options, show: Show) -> tuple[Figures, Observed]:
    """Fire lag of an open loop at a rate, from the due instant to the lease in hand."""
    async with Driver.opened(folder, show, urls=options.urls, limits=options.limits) as driver:
        await fill(driver, options)
        observed = await observe_fire_lag(driver, options)
        figures = fire_lag_figures(observed, driver)
    figures["settings"]["pending"] = options.pending
    if options.snapshot_meanwhile and not figures["snapshots"]["taken"]:
        raise RunFailed("no snapshot was taken in the measured window")
    return figures, observed


async def peak(folder: Path, options: Options, show: Show) -> tuple[Figures, Observed]:
    """The highest rate that is held: the figures of its run, and a line for each rate tried."""
    probes: list[Figures] = []
    broken: Counter[str] = Counter()
    kept: tuple[Figures, Observed] | None = None

    async def holds(rate: float) -> bool:
        nonlocal kept

        def show_rate(text: str, share: float) -> None:
            show(f"{rate:,.0f}/s: {text}", share)

        probe = folder / f"probe-{len(probes)}"
        probe.mkdir()
        run = await fire_lag(probe, msgspec.structs.replace(options, rate=rate), show_rate)
        shutil.rmtree(probe)  # a journal of millions
        why = shortfalls(run[0], options.p99_ms)
        probes.append(probe_figures(run[0], why))
        broken.update({name: run[0][name] for name in MUST_NOT_BE})
        if kept is None or not why:
            kept = run
        return not why

    found = await find_peak(holds, options.lowest, options.highest)
    assert kept is not None
    figures, observed = kept
    peak_figures = {
        "p99_bound_ms": options.p99_ms,
        "rate_held": found.held,
        "rate_not_held": found.not_held,
        "probes": probes,
    }
    return {**peak_figures, **figures, **broken}, observed


async def submit(folder: Path, options: Options, show: Show) -> Figures:
    """Creates only, as fast as they are answered: jobs due far ahead, and no worker."""
    async with Driver.opened(folder, show, urls=options.urls, limits=options.limits) as driver:
        plan = make_plan(
            driver,
            options,
            queue=LATER_QUEUE,
            total=options.executions,
            rate=options.executions * 1000 / LATER_MS,
            mode="preloaded",
            workers=0,
        )
        observed = await driver.run(plan, lead_ms=LATER_MS, window_s=(-LATER_MS / 1000,) * 2)
        began_ns = min(record.began_ns for record in observed.submitters)
        ended_ns = max(record.ended_ns for record in observed.submitters)
        seconds = (ended_ns - began_ns) / 1e9
        return {
            "jobs": observed.merged.account.acknowledged,
            "refused": observed.merged.account.refused,
            "seconds": round(seconds, 3),
            "jobs_per_s": round(observed.merged.account.acknowledged / seconds),
            "create_ms": submitter_figures(observed)["create_ms"],
            **surroundings(observed, driver),
        }


async def claim(folder: Path, options: Options, show: Show) -> Figures:
    """Claims and completions as fast as they go, of a backlog that was due before they began."""
    async with Driver.opened(folder, show, urls=options.urls, limits=options.limits) as driver:
        observed = await _at_one_instant(driver, options, hold_workers_ms=1_000)
        arrivals = observed.merged.arrivals
        seconds = (arrivals.at_us[-1] / 1000 - observed.go_ms) / 1000 if arrivals.count else 0.0
        return {
            **_correctness(observed),
            "seconds_to_last_lease": round(seconds, 3),
            "leases_per_s": round(arrivals.count / seconds) if seconds else None,
            "workers": worker_figures(observed),
            **surroundings(observed, driver),
        }


async def burst(folder: Path, options: Options, show: Show) -> Figures:
    """All executions due on one instant, with the claims waiting for it.

    They share one partition, in which the order is defined: the older job goes first.
    """
    async with Driver.opened(folder, show, urls=options.urls, limits=options.limits) as driver:
        observed = await _at_one_instant(driver, options, hold_workers_ms=0)
        at_us = observed.merged.arrivals.at_us
        due_us = observed.start_ms * 1000
        return {
            **_correctness(observed),
            "first_ms": round((at_us[0] - due_us) / 1000, 2) if at_us else None,
            "all_in_hands_ms": round((at_us[-1] - due_us) / 1000, 2) if at_us else None,
            "out_of_order": out_of_order(observed.merged),
            "changes_of_term": observed.terms,
            **node_figures(observed),
            **surroundings(observed, driver),
        }


async def _at_one_instant(driver: Driver, options: Options, hold_workers_ms: int) -> Observed:
    plan = make_plan(
        driver,
        options,
        total=options.executions,
        rate=0.0,
        mode="preloaded",
        jobs_per_post=PRELOAD_JOBS_PER_POST,
        partition_key="burst",
    )
    return await driver.run(
        plan,
        lead_ms=_preload_ms(plan.total),
        window_s=(0.0, max(1.0, plan.total / DELIVERED_PER_S)),
        hold_workers_ms=hold_workers_ms,
    )


def _correctness(observed: Observed) -> Figures:
    account = observed.merged.account
    names = ("early", "lost", "double_accepted", "duplicates", "redelivered", "refused")
    return {"executions": account.delivered} | {name: getattr(account, name) for name in names}


async def failover(folder: Path, options: Options, show: Show) -> tuple[Figures, Observed]:
    """The open loop while leaders are killed: the gaps that workers see."""
    if not options.kill_leader_every_s:
        raise RunFailed("a fail-over bench kills leaders: say how often")
    figures, observed = await fire_lag(folder, options, show)
    if not observed.kills:
        raise RunFailed("the window ended before a leader was killed")
    return figures, observed
