"""The demo's jobs: what is submitted, under which labels, and what each asks of its worker.

A payload is ``{"label": …}``; the worker (`demo_worker`) looks only at the label.
"""

from __future__ import annotations

import asyncio
import contextlib
import math

from timeball.bench.recording import RecordingClient
from timeball.client.messages import After, At, Cron, Every, NewJob, Retry, Schedule

IMMEDIATE = "immediate"
DELAYED = "delayed"
INTERVAL = "interval"
CRON = "cron"
STREAM = "stream"
WAVE = "wave"
FLAKY = "flaky"
POISON = "poison"
KEYED = "keyed"
UNWANTED = "unwanted"
CRASH = "crash"
ZOMBIE = "zombie"
SLOW = "slow"

ZOMBIE_REPEAT_S = 1.5
"""How long the second holder works: the first reports late while it does."""
SLOW_S = 0.4
FLAKY_FAILURES = 2
POISON_ATTEMPTS = 3
KEY = "invoice-2024-17"

QUICK_RETRY = Retry(max_attempts=5, initial_ms=300, max_ms=1_000)

IMMEDIATE_JOBS = 100
DELAYED_JOBS = 300
STREAM_SPACING_S = 0.04
STREAM_LIMIT = 200
"""Most creates of the stream that may wait for their answer at one time."""
WAVE_JOBS = 1_000
WAVE_SPACING_MS = 4
"""Dense, so that even a fail-over of a tenth of a second has a load to carry over."""


def job(label: str, schedule: Schedule | None = None, retry: Retry = QUICK_RETRY) -> NewJob:
    """Make a job of that label."""
    return NewJob(payload={"label": label}, schedule=schedule, retry=retry)


async def submit_base_load(client: RecordingClient, now_ms: int, end_ms: int) -> None:
    """Submit immediate, delayed, interval and every-second jobs; the timetables end at `end_ms`.

    The timetables end half-way between two of their nominal times, and catch up on all, so
    that every single one of them can be asked for afterwards.
    """
    await client.submit(IMMEDIATE, [job(IMMEDIATE)] * IMMEDIATE_JOBS)
    span_ms = end_ms - now_ms
    delays = [500 + place * (span_ms - 500) // DELAYED_JOBS for place in range(DELAYED_JOBS)]
    schedules = [
        At(now_ms + delay) if place % 2 else After(delay) for place, delay in enumerate(delays)
    ]
    await client.submit(DELAYED, [job(DELAYED, schedule) for schedule in schedules])
    second_ms = math.ceil(now_ms / 1000) * 1000
    until_ms = end_ms // 1000 * 1000 + 550
    every_second = Cron("* * * * * *", until=until_ms, catch_up="all")
    every_other = Cron("*/2 * * * * *", until=until_ms, catch_up="all")
    await client.submit(CRON, [job(CRON, every_second), job(CRON, every_other)])
    quarter = Every(250, anchor=second_ms - 125, until=until_ms, catch_up="all")
    drifting = Every(410, until=until_ms, catch_up="all")
    await client.submit(INTERVAL, [job(INTERVAL, quarter), job(INTERVAL, drifting)])


async def submit_wave(client: RecordingClient, now_ms: int) -> None:
    """Submit the one-shot jobs that keep work due, every few milliseconds, over a fail-over."""
    due = [At(now_ms + 300 + place * WAVE_SPACING_MS) for place in range(WAVE_JOBS)]
    await client.submit(WAVE, [job(WAVE, at) for at in due])


async def submit_stream(client: RecordingClient, stop: asyncio.Event) -> None:
    """Create one job after another at a steady pace until `stop`, whatever becomes of them.

    An open loop: a slow answer does not slow the next request down. Returns when every
    create is answered; raises (a group) when one failed.
    """
    loop = asyncio.get_running_loop()
    free = asyncio.Semaphore(STREAM_LIMIT)

    async def create() -> None:
        async with free:
            await client.submit(STREAM, [job(STREAM)], single=True)

    following = loop.time()
    async with asyncio.TaskGroup() as creates:
        while not stop.is_set():
            if not free.locked():
                creates.create_task(create())
            following += STREAM_SPACING_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(following):
                    await stop.wait()
