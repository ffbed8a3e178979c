"""Forgetting: what has ended is kept for a while, up to a number and up to a size, then dropped.

Runs within every entry, by log-time and in small steps, so every node drops the same
records at the same entry and no entry stalls for it.
"""

from __future__ import annotations

from typing import Final

from timeball.cluster.state.limits import INSTRUCTION_KEPT_MS, TRIM_STEP
from timeball.cluster.state.records import Execution
from timeball.cluster.state.sizes import kept_bytes
from timeball.cluster.state.store import EndedJob, Store

RETENTION: Final = "retention"
"""Why a dead execution is gone that nobody purged: there are too many, or too large."""


def trim(store: Store) -> None:
    """Drop what is too old, too many or too large; a bounded number of records of each kind.

    The bound follows what the entry itself touched, so that no rate outruns it.
    """
    settings = store.settings
    now_ms = store.log_time_ms
    steps = TRIM_STEP + len(store.touched)
    _trim_finished(store, steps)
    _trim_dead(store, steps)
    store.counters.keys_forgotten += store.keys.trim(now_ms, settings.idempotency_keys, steps)
    store.requests.trim(now_ms, settings.request_memory_ms, settings.request_memory, steps)
    store.claims.trim(now_ms, settings.claim_memory_ms, settings.claim_memory, steps)
    if store.instructions:
        _trim_instructions(store, steps)


def _trim_finished(store: Store, steps: int) -> None:
    finished, settings = store.finished, store.settings
    newest_gone_ms = store.log_time_ms - settings.keep_finished_ms
    count = len(finished)
    for kept in range(count, max(count - steps, 0), -1):
        if (
            kept <= settings.keep_finished
            and store.finished_bytes <= settings.keep_finished_bytes
            and finished.oldest.finished_ms > newest_gone_ms
        ):
            return
        _drop(store, finished.take())


def _drop(store: Store, ended: Execution | EndedJob) -> None:
    if type(ended) is Execution:
        store.finished_bytes -= kept_bytes(ended)
        store.drop_execution(ended)
    else:
        assert isinstance(ended, EndedJob)
        store.finished_bytes -= kept_bytes(ended.job)
        store.drop_job(ended.job)


def _trim_instructions(store: Store, steps: int) -> None:
    instructions = store.instructions
    newest_gone_ms = store.log_time_ms - INSTRUCTION_KEPT_MS
    for _ in range(min(steps, len(instructions))):
        worker = next(iter(instructions))
        if instructions[worker][1] > newest_gone_ms:
            return
        del instructions[worker]


def _trim_dead(store: Store, steps: int) -> None:
    dead, settings = store.dead, store.settings
    for _ in range(min(steps, len(dead))):
        if len(dead) <= settings.keep_dead and store.dead_bytes <= settings.keep_dead_bytes:
            return
        store.bury(next(iter(dead)), RETENTION)
