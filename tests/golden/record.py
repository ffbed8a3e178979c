"""Records a journal that holds something of everything, and what it must come to.

Each release keeps the journals of those before it, and replays them to the same state. Run
`python tests/golden/record.py 2` to record one for feature level 2; those that are there are
never recorded anew.
"""

from __future__ import annotations

import base64
import json
import random
import sys
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from timeball.cluster.state.levels import FIRST_LEVEL
from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import (
    INSTRUCTIONS,
    Advance,
    AdvanceTimetables,
    AnyOperation,
    At,
    BackfillJob,
    CancelJobs,
    Change,
    Claim,
    ClusterSettings,
    ConfigureQueue,
    CreateJobs,
    Cron,
    Dates,
    Every,
    Expire,
    Fail,
    Failure,
    Fate,
    InstructWorker,
    KeyRule,
    Lead,
    NewJob,
    Options,
    ParkTimetables,
    PauseJob,
    PurgeDead,
    PutJob,
    RaiseLevel,
    Release,
    Replay,
    ReportProgress,
    ResumeJob,
    RetryPolicy,
    SkipExpired,
    Start,
    Succeed,
    Success,
    Timetable,
    TriggerJob,
    UpdateJob,
    Window,
    encode_entry,
)
from timeball.cluster.state.queue_settings import (
    QueueChange,
    RateLimit,
)
from timeball.cluster.state.records import Job
from timeball.wheel import TimeBuckets

HERE = Path(__file__).parent
EPOCH_MS = 1_764_480_000_000
ENTRIES = 800
SETTINGS = ClusterSettings(
    keep_finished=40,
    keep_finished_ms=60_000,
    keep_dead=12,
    idempotency_window_ms=20_000,
    idempotency_keys=8,
    claim_memory_ms=15_000,
    max_pending=60,
    request_memory_ms=15_000,
    request_memory=40,
    claim_memory=40,
    keep_finished_bytes=30_000,
    keep_dead_bytes=9_000,
    catch_up_per_s=1,
    idempotency_max_window_ms=60_000,
    idempotency_keys_held=7,
)
OPTIONS = [
    Options("tenant-1"),
    Options(requires=("gpu", "linux"), tags=("é",)),
    Options(expires_ms=4_000_000_000_000, expires_after_ms=86_400_000),
    Options(expires_after_ms=2_000),
]
KEY_RULES = [
    None,
    KeyRule(9_000),
    KeyRule(40_000, within_queue=True),
    KeyRule(reject=True),
    KeyRule(10**12),
    KeyRule(until_ended=True),
    KeyRule(until_ended=True, within_queue=True, reject=True),
]
POLICIES = [
    None,
    RetryPolicy(1),
    RetryPolicy(2, 500, 300, 4_000, 50),
    RetryPolicy(3, 100),
    RetryPolicy(4, 300, max_ms=700, backoff="linear", jitter_pct=100),
    RetryPolicy(3, 250, backoff="fixed", non_retryable_errors=("KeyError", "é")),
    RetryPolicy(9, max_ms=2_000, backoff="list", delays_ms=(0, 50, 3_000)),
]
TIMETABLES = [
    Timetable((Every(3_000, EPOCH_MS),)),
    Timetable((Every(7_000, EPOCH_MS),), until_ms=EPOCH_MS + 90_000, catch_up="all"),
    Timetable((Cron("*/5 * * * *", "Europe/Berlin"),), catch_up="none", overlap="skip"),
    Timetable(
        (Every(2_000, EPOCH_MS), At((EPOCH_MS + 5_500, EPOCH_MS + 9_500))),
        jitter_ms=700,
        exclusions=(Dates(((735_000, 735_002),)), Window("0 0 * * *")),
        overlap="cancel_running",
        pause_on_failure=True,
    ),
    Timetable((Every(2_000, EPOCH_MS),), max_runs=9, overlap="buffer_one"),
]


class Recorder:
    """Makes operations that fit the state, and some that do not."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.machine = StateMachine()
        self.now_ms = EPOCH_MS
        self.entries: list[tuple[int, bytes]] = []
        self.tokens: list[tuple[int, int, int]] = [(4096, EPOCH_MS, 8192)]
        """Holds that were granted some time, ended or not."""

    def record(self, count: int) -> None:
        self.apply(1, [Lead("a", SETTINGS)])
        index = 1
        while len(self.entries) < count:
            index += self.rng.choice([1, 1, 1, 2])  # barriers carry nothing for the state
            self.now_ms += self.rng.choice([0, 1, 5, 40, 300, 1_500])
            operations = [self.operation(index) for _ in range(self.rng.randint(0, 4))]
            self.apply(index, operations)

    def apply(self, index: int, operations: list[AnyOperation]) -> None:
        entry = encode_entry(self.now_ms, operations)
        applied = self.machine.apply(index, entry)
        assert applied.halt is None, applied.halt
        self.entries.append((index, entry))
        for operation, verdict in zip(operations, applied.verdicts, strict=True):
            if isinstance(operation, Claim):
                granted: Any = verdict
                for (job, nominal_ms), token in zip(operation.executions, granted, strict=True):
                    if token:
                        self.tokens.append((job, nominal_ms, token))

    def operation(self, index: int) -> AnyOperation:
        rng = self.rng
        match rng.randrange(32):
            case 0 | 1 | 2 | 3 | 4:
                jobs = [self.job() for _ in range(rng.randint(0, 4))]
                return CreateJobs(rng.choice(["", f"r{rng.randrange(200)}"]), jobs)
            case 5 | 6 | 7 | 8 | 9:
                due = self.some(upto(self.machine.pending, self.now_ms), 4)
                named = [(one.job.id, one.nominal_ms) for one in due]
                if rng.random() < 0.2:
                    named.append((index * 4096, self.now_ms))
                worker = f"w{rng.randrange(3)}"
                offered = rng.choice([(), ("gpu", "linux"), ("gpu", "linux")])
                request_id = rng.choice(["", f"c{rng.randrange(99)}"])
                return Claim(worker, request_id, 5_000, named, offered)
            case 10 | 11:
                return Start(self.holds())
            case 12 | 13 | 14 | 15:
                return Succeed(
                    [Success(*hold, blob(rng, 0, 9, 900), self.now_ms - 3) for hold in self.holds()]
                )
            case 16 | 17 | 18:
                return Fail([self.failure(hold) for hold in self.holds()])
            case 19:
                return Release(self.holds())
            case 20:
                return Expire([(*hold, rng.random() < 0.3) for hold in self.holds()])
            case 21:
                return AdvanceTimetables(list(self.advances()))
            case 22:
                letters = self.letters()
                return Replay(letters) if rng.random() < 0.5 else PurgeDead(letters)
            case 31:
                waiting = self.some(upto(self.machine.pending, self.now_ms), 9)
                return SkipExpired([(one.job.id, one.nominal_ms) for one in waiting])
            case 23 | 24 | 25 | 26 | 27 | 28:
                return self.change()
            case 29:
                return ReportProgress([(*hold, blob(rng, 1, 9, 900)) for hold in self.holds()])
            case _:
                if rng.random() < 0.2:
                    return RaiseLevel(7, FIRST_LEVEL)  # does nothing: it is at no such level
                if rng.random() < 0.2:
                    return Lead(rng.choice("abc"), SETTINGS)
                if rng.random() < 0.2:
                    told = rng.choice(["", *INSTRUCTIONS])
                    return InstructWorker(f"w{rng.randrange(3)}", told)
                if rng.random() < 0.5:
                    return self.configure()
                jobs = self.machine.list_jobs(limit=50).items
                return CancelJobs([job.id for job in self.some(jobs, 2)] + [12])

    def configure(self) -> ConfigureQueue:
        """New settings of a queue that is there, or of one that has no jobs."""
        rng = self.rng
        change = QueueChange(
            rng.choice(["active", "active", "active", "paused", "draining"]),
            rng.choice([-1, 0, 5]),
            rng.choice([-1, 0, 1]),
            rng.choice([None, RateLimit(0, 0, 0), RateLimit(5, 1_000, 3)]),
        )
        version = rng.choice([-1, -1, 0, self.machine.counters.configured])
        return ConfigureQueue(rng.choice(["é", "é", "mail", "none yet"]), version, change)

    def change(self) -> AnyOperation:
        """Something done to a job, mostly to a recurring one."""
        rng = self.rng
        jobs = self.machine.list_jobs(limit=200).items
        recurring = [job for job in jobs if job.recurrence is not None]
        if not recurring:
            return PutJob("nightly", self.job())
        job = rng.choice(recurring if rng.random() < 0.9 else jobs)
        match rng.randrange(9):
            case 0:
                to_come = [one for one in recurring if one.moves_at_ms > self.now_ms]
                job = rng.choice(to_come or [job])
                return PauseJob(job.id, rng.choice(["", "maintenance"]))
            case 1 | 2:
                return ResumeJob(job.id, rng.random() < 0.3)
            case 3:
                return TriggerJob(job.id, rng.choice(["", f"r{rng.randrange(200)}"]))
            case 4:
                past = [self.now_ms - 9_000, self.now_ms - 5_000, self.now_ms - 1]
                return BackfillJob(job.id, job.version, past)
            case 5 | 6:
                version = rng.choice([0, job.version, 1])
                return UpdateJob(job.id, version, self.new_parts(job))
            case 7:
                return ParkTimetables([(job.id, job.version, "it failed")])
            case _:
                return PutJob(rng.choice(["nightly", "hourly", "é"]), self.job())

    def new_parts(self, job: Job) -> Change:
        rng = self.rng
        return Change(
            rng.choice([None, None, blob(rng, 0, 20, 300)]),
            rng.choice([None, None, RetryPolicy(4, 50)]),
            rng.choice([-1, 7]),
            rng.choice([-1, 800]),
            timetable=None if job.recurrence is None else rng.choice([None, *TIMETABLES]),
            delay_ms=rng.choice([-1, 400]) if job.recurrence is None else -1,
            requires=rng.choice([None, None, (), ("eu",)]),
            tags=rng.choice([None, None, ("new",)]),
            expires_ms=rng.choice([-1, -1, 0]),
            expires_after_ms=rng.choice([-1, -1, 0, 7_000]),
        )

    def job(self) -> NewJob:
        rng = self.rng
        recurring = rng.random() < 0.2
        return NewJob(
            rng.choice(["mail", "bills", "é"]),
            blob(rng, 0, 20, 300),
            first_ms=self.now_ms + 1_000 if recurring else rng.choice([0, self.now_ms - 50]),
            delay_ms=rng.choice([0, 0, 100, 4_000]),
            timetable=rng.choice(TIMETABLES) if recurring else None,
            priority=rng.randrange(10),
            partition_key=rng.choice(["", "tenant-1"]),
            retry=rng.choice(POLICIES),
            timeout_ms=rng.choice([0, 9_000]),
            idempotency_key=rng.choice(["", "", f"k{rng.randrange(25)}"]),
            fingerprint=rng.choice([b"f", b"g"]),
            options=rng.choice([None, None, *OPTIONS]),
            key_rule=rng.choice([None, None, *KEY_RULES]),
        )

    def holds(self) -> list[tuple[int, int, int]]:
        """Mostly what is held now, and something that was held once."""
        held = [(one.job.id, one.nominal_ms, token) for token, one in self.machine.leased.items()]
        chosen = list(self.some(held, 3))
        if self.rng.random() < 0.3:
            chosen.append(self.rng.choice(self.tokens))
        return chosen

    def failure(self, hold: tuple[int, int, int]) -> Failure:
        rng = self.rng
        return Failure(
            *hold,
            error_type=rng.choice(["", "ValueError", "KeyError"]),
            message=rng.choice(["", "it failed", "é" * 50]),
            retry_after_ms=rng.choice([-1, -1, 0, 2_000]),
            non_retryable=rng.random() < 0.1,
            backtrace=rng.choice(["", "", "line 1\nline 2", "é" * 9_000]),
        )

    def advances(self) -> Iterator[Advance]:
        for job in self.some(upto(self.machine.timetables, self.now_ms + 5_000), 3):
            after_ms = job.planned_ms
            nominals = [after_ms + 1_000 * (1 + step) for step in range(self.rng.randrange(3))]
            planned_ms = nominals[-1] if nominals else after_ms + 2_000
            fate = Fate(after_ms, after_ms, 1, self.rng.randrange(3), "late")
            yield Advance(
                job.id,
                job.version,
                after_ms,
                nominals,
                planned_ms,
                self.rng.choice([(), (fate,)]),
                self.rng.choice([None, None, fate]),
                self.rng.choice([0, 0, len(nominals)]),
                ended=self.rng.random() < 0.1,
            )

    def letters(self) -> list[tuple[int, int, int]]:
        """Dead letters by their last token, by any, and by one that they did not die of."""
        return [
            (one.job.id, one.nominal_ms, self.rng.choice([one.token, 0, one.token - 1]))
            for one in self.some(self.machine.list_dead(limit=5).items, 2)
        ]

    def some(self, items: Any, most: int) -> list[Any]:
        found = list(items)
        return self.rng.sample(found, min(len(found), self.rng.randint(0, most)))


def blob(rng: random.Random, *sizes: int) -> bytes:
    """One byte over and over: large in the state, small in the file."""
    return rng.randbytes(1) * rng.choice(sizes)


def upto(buckets: TimeBuckets[Any], end_ms: int) -> list[Any]:
    """What stands in buckets up to an instant."""
    return [item for _, items in buckets.upto(end_ms) for item in items]


def outcome(machine: StateMachine) -> dict[str, Any]:
    """What a replay must come to: the digest, and the totals in words, to compare by eye."""
    return {
        "digest": machine.digest(),
        "level": machine.level,
        "log_time_ms": machine.log_time_ms,
        "totals": asdict(machine.counters),
    }


def replay(entries: list[tuple[int, bytes]], machine: StateMachine) -> dict[str, Any]:
    """Apply all of a journal; its outcome."""
    for index, entry in entries:
        applied = machine.apply(index, entry)
        assert applied.halt is None, applied.halt
    return outcome(machine)


def load(path: Path) -> list[tuple[int, bytes]]:
    """The entries of a recorded journal with their indexes."""
    raw = zlib.decompress(base64.b64decode(path.read_text("ascii")))
    return msgspec.msgpack.decode(raw, type=list[tuple[int, bytes]])


def main(level: int) -> None:
    journal = HERE / f"level-{level}.journal"
    assert not journal.exists(), "what is recorded stays as it is"
    recorder = Recorder(seed=level)
    recorder.record(ENTRIES)
    content = zlib.compress(msgspec.msgpack.encode(recorder.entries), 9)
    journal.write_text(base64.encodebytes(content).decode("ascii"), "ascii")
    text = json.dumps(outcome(recorder.machine), indent=2)
    journal.with_suffix(".json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]))
