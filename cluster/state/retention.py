"""Forgetting: what has ended is kept for a while and up to a number, then dropped.

Runs within every entry, by log-time and in small steps, so every node drops the same
records at the same entry and no entry stalls for it.
"""

from __future__ import annotations

from timeball.cluster.state.limits import TRIM_STEP
from timeball.cluster.state.records import Execution
from timeball.cluster.state.store import EndedJob, Store


def trim(store: Store) -> None:
    """Drop what is too old or too many; at most a bounded number of records of each kind.

    The bound follows what the entry itself touched, so that no rate outruns it.
    """
    settings = store.settings
    now_ms = store.log_time_ms
    steps = TRIM_STEP + len(store.touched)
    _trim_finished(store, steps)
    _trim_dead(store, steps)
    store.keys.trim(now_ms, settings.idempotency_window_ms, settings.idempotency_keys, steps)
    store.requests.trim(now_ms, settings.request_memory_ms, settings.request_memory, steps)
    store.claims.trim(now_ms, settings.claim_memory_ms, settings.claim_memory, steps)


def _trim_finished(store: Store, steps: int) -> None:
    finished = store.finished
    surplus = min(len(finished) - store.settings.keep_finished, steps)
    for _ in range(surplus):
        _drop(store, finished.popleft())
    newest_gone_ms = store.log_time_ms - store.settings.keep_finished_ms
    for _ in range(steps - max(surplus, 0)):
        if not finished or finished[0].finished_ms > newest_gone_ms:
            return
        _drop(store, finished.popleft())


def _drop(store: Store, ended: Execution | EndedJob) -> None:
    if type(ended) is Execution:
        store.drop_execution(ended)
    else:
        assert isinstance(ended, EndedJob)
        store.drop_job(ended.job)


def _trim_dead(store: Store, steps: int) -> None:
    dead = store.dead
    while steps > 0 and len(dead) > store.settings.keep_dead:
        execution, _ = dead.popitem(last=False)
        store.drop_execution(execution)
        steps -= 1
