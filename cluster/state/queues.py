"""The settings of queues: how they change, and what they let be leased.

Every bound is checked where a lease is granted, against counts that every node derives from
the same log; so it holds over a change of leader, and no leader can forget it. The leader
foresees them (see `dispatch.admission`) in order not to propose what would be refused.

A rate limit is a token bucket, kept as a meter (ITU-T I.371, the continuous-state leaky bucket):
each lease charges it `per_ms`, each millisecond of log-time takes `executions` off, and there is
room for a lease while the charge stays within `burst` leases. All of it is whole numbers: no
rounding adds up. A lease that is given back unused stays charged.
"""

from __future__ import annotations

from timeball.cluster.state import limits
from timeball.cluster.state.operations import (
    ConfigureQueue,
)
from timeball.cluster.state.queue_settings import (
    DEFAULT_QUEUE_SETTINGS,
    DRAINING,
    PAUSED,
    QueueChange,
    QueueSettings,
    RateLimit,
)
from timeball.cluster.state.records import ConfiguredQueue, Execution
from timeball.cluster.state.soundness import is_sound_queue
from timeball.cluster.state.store import Store
from timeball.cluster.state.verdicts import ChangeStatus, QueueConfigured


def configure_queue(store: Store, operation: ConfigureQueue) -> QueueConfigured:
    """Change what the operation names of a queue's settings. Defaults are not kept."""
    name = operation.queue
    known = store.configured.get(name)
    version = 0 if known is None else known.version
    before = DEFAULT_QUEUE_SETTINGS if known is None else known.settings
    if operation.version not in (-1, version):
        return QueueConfigured(ChangeStatus.OTHER_VERSION, version, before)
    settings = _changed(before, operation.change)
    if settings == before:
        return QueueConfigured(ChangeStatus.UNCHANGED, version, before)
    if not is_sound_queue(name, settings):
        return QueueConfigured(ChangeStatus.INVALID, version, before)
    if known is None and len(store.configured) >= limits.MAX_CONFIGURED_QUEUES:
        return QueueConfigured(ChangeStatus.FULL, version, before)
    store.counters.configured += 1
    store.reconfigured.append(name)
    if settings == DEFAULT_QUEUE_SETTINGS:
        del store.configured[name]
        return QueueConfigured(ChangeStatus.CHANGED, 0, settings)
    version = store.counters.configured
    configured = ConfiguredQueue(settings, version)
    if known is not None:
        _carry_over(known, configured, store.log_time_ms)
    store.configured[name] = configured
    return QueueConfigured(ChangeStatus.CHANGED, version, settings)


def _changed(before: QueueSettings, change: QueueChange) -> QueueSettings:
    rate = before.rate_limit
    if change.rate_limit is not None:
        rate = change.rate_limit if change.rate_limit.executions else None
    of_key = change.max_concurrency_per_key
    return QueueSettings(
        change.state or before.state,
        before.max_concurrency if change.max_concurrency == -1 else change.max_concurrency,
        before.max_concurrency_per_key if of_key == -1 else of_key,
        rate,
    )


def _carry_over(before: ConfiguredQueue, after: ConfiguredQueue, now_ms: int) -> None:
    """What was leased of late counts against the new rate limit, too: else each change of the
    settings would allow another burst."""
    old, new = before.settings.rate_limit, after.settings.rate_limit
    if old is None or new is None:
        return
    leases = -(-_charge(before, old, now_ms) // old.per_ms)
    after.charged = (
        _charge(before, old, now_ms) if old == new else min(leases, new.burst) * new.per_ms
    )
    after.charged_ms = now_ms


def is_draining(store: Store, queue: str) -> bool:
    """Whether a queue takes no new jobs."""
    configured = store.configured.get(queue)
    return configured is not None and configured.settings.state == DRAINING


def admit(store: Store, execution: Execution) -> bool:
    """Whether the settings of its queue let an execution be leased now; if so, it is charged."""
    job = execution.job
    configured = store.configured.get(job.queue)
    if configured is None:
        return True
    settings, counts = configured.settings, store.queues[job.queue]
    if settings.state == PAUSED:
        return False
    if settings.max_concurrency and counts.leased >= settings.max_concurrency:
        return False
    per_key, key = settings.max_concurrency_per_key, job.options.concurrency_key
    if per_key and counts.leased_by_key.get(key, 0) >= per_key:
        return False
    rate = settings.rate_limit
    if rate is not None:
        now_ms = store.log_time_ms
        if not rate_room(configured, now_ms):
            return False
        configured.charged = _charge(configured, rate, now_ms) + rate.per_ms
        configured.charged_ms = now_ms
    return True


def rate_room(configured: ConfiguredQueue, now_ms: int) -> int:
    """How many leases the rate limit of a queue has room for; it must have one."""
    rate = configured.settings.rate_limit
    assert rate is not None
    return (rate.burst * rate.per_ms - _charge(configured, rate, now_ms)) // rate.per_ms


def rate_room_ms(configured: ConfiguredQueue, leases: int) -> int:
    """When the rate limit of a queue will have room for so many leases, if none is granted
    before; they must fit its burst."""
    rate = configured.settings.rate_limit
    assert rate is not None
    assert leases <= rate.burst
    over = configured.charged - (rate.burst - leases) * rate.per_ms
    return configured.charged_ms + max(-(-over // rate.executions), 0)


def _charge(configured: ConfiguredQueue, rate: RateLimit, now_ms: int) -> int:
    passed_ms = max(now_ms - configured.charged_ms, 0)
    return max(configured.charged - passed_ms * rate.executions, 0)


def is_soundly_charged(configured: ConfiguredQueue, now_ms: int) -> bool:
    """Whether what is said of its rate limit can be so, at that log-time."""
    rate = configured.settings.rate_limit
    most = 0 if rate is None else rate.burst * rate.per_ms
    return 0 <= configured.charged <= most and 0 <= configured.charged_ms <= now_ms
