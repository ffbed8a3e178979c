"""A downstream outage fails very many jobs at once: how they return, and what it costs the log."""

from __future__ import annotations

from collections import Counter

from timeball.cluster.state.machine import StateMachine
from timeball.cluster.state.operations import (
    Claim,
    CreateJobs,
    Fail,
    Failure,
    NewJob,
    RetryPolicy,
    encode_entry,
)

EPOCH_MS = 1_764_480_000_000
JOBS = 100_000
BATCH = 1_000
WINDOW_MS = 600_000


def test_retr_05_what_failed_within_a_second_returns_spread_out_and_the_log_stays_small():
    policy = RetryPolicy(3, WINDOW_MS, jitter_pct=100, backoff="fixed")
    machine = StateMachine()
    index = written = 0

    def apply(now_ms, operation):
        nonlocal index, written
        index += 1
        entry = encode_entry(now_ms, [operation])
        written += len(entry)
        applied = machine.apply(index, entry)
        assert applied.halt is None, applied.halt
        return applied.verdicts[0]

    held = []
    for number in range(JOBS // BATCH):
        created = apply(EPOCH_MS, CreateJobs("", [NewJob("mail", bytes(64), retry=policy)] * BATCH))
        holds = [(one.job, one.nominal_ms) for one in created.jobs]
        tokens = apply(EPOCH_MS, Claim("w", "", 10_000, holds))
        held.append((number, [(*hold, token) for hold, token in zip(holds, tokens, strict=True)]))
    created_bytes, written = written, 0
    calm_bytes = sum(map(len, machine.dump()))
    for number, batch in held:
        failed_ms = EPOCH_MS + 1_000 * number * BATCH // JOBS
        apply(failed_ms, Fail([Failure(*hold, "ConnectionError", "no route") for hold in batch]))

    returning = [one for _, items in machine.pending.upto(2**62) for one in items]
    per_second = Counter((one.due_ms - EPOCH_MS) // 1_000 for one in returning)
    assert sum(per_second.values()) == JOBS
    assert max(per_second) <= (WINDOW_MS + 1_000) // 1_000
    mean = JOBS / (WINDOW_MS / 1_000)
    assert max(per_second.values()) < 3 * mean
    assert len(per_second) >= WINDOW_MS // 1_000, "no second of the window is without any"
    # A failure is written once; the return of a job is no entry at all.
    assert written / JOBS < 64
    assert written < created_bytes
    # The snapshot grows by what the attempts say, and by nothing else.
    assert (sum(map(len, machine.dump())) - calm_bytes) / JOBS < 64
