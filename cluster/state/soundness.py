"""Whether parts of a definition keep to the limits of the state, whatever the edges let through."""

from __future__ import annotations

import itertools

from timeball.cluster.state import limits
from timeball.cluster.state.operations import (
    BACKOFFS,
    LIST,
    OVERLAPS,
    At,
    Cron,
    Dates,
    Every,
    KeyRule,
    Options,
    RetryPolicy,
    Timetable,
    Window,
)
from timeball.cluster.state.queue_settings import (
    QUEUE_STATES,
    QueueSettings,
    RateLimit,
)


def is_sound_policy(retry: RetryPolicy) -> bool:
    """A retry policy."""
    return (
        1 <= retry.max_attempts <= limits.MAX_ATTEMPTS
        and 0 <= retry.initial_ms <= limits.MAX_DURATION_MS
        and 1 <= retry.multiplier_pct <= limits.MAX_MULTIPLIER_PCT
        and 0 <= retry.max_ms <= limits.MAX_DURATION_MS
        and 0 <= retry.jitter_pct <= 100
        and retry.backoff in BACKOFFS
        and (retry.backoff == LIST) is (retry.delays_ms != ())
        and len(retry.delays_ms) <= limits.MAX_DELAYS
        and all(0 <= delay_ms <= limits.MAX_DURATION_MS for delay_ms in retry.delays_ms)
        and len(retry.non_retryable_errors) <= limits.MAX_NON_RETRYABLE_ERRORS
        and all(0 < len(name) <= limits.MAX_ERROR_TYPE_CHARS for name in retry.non_retryable_errors)
    )


def is_sound_options(options: Options) -> bool:
    """What few jobs ask for."""
    return (
        len(options.concurrency_key) <= limits.MAX_KEY_CHARS
        and _are_tags(options.requires)
        and _are_tags(options.tags)
        and 0 <= options.expires_ms <= limits.MAX_TIME_MS
        and 0 <= options.expires_after_ms <= limits.MAX_DURATION_MS
    )


def is_sound_rule(rule: KeyRule, max_window_ms: int) -> bool:
    """How an idempotency key holds."""
    return 0 <= rule.window_ms <= max_window_ms and not (rule.window_ms and rule.until_ended)


def _are_tags(tags: tuple[str, ...]) -> bool:
    return (
        len(tags) <= limits.MAX_TAGS
        and all(0 < len(tag) <= limits.MAX_TAG_CHARS for tag in tags)
        and all(one < other for one, other in itertools.pairwise(tags))
    )


def is_sound_queue(name: str, settings: QueueSettings) -> bool:
    """A queue's name and settings."""
    rate = settings.rate_limit
    return (
        0 < len(name) <= limits.MAX_QUEUE_CHARS
        and settings.state in QUEUE_STATES
        and 0 <= settings.max_concurrency <= limits.MAX_CONCURRENCY
        and 0 <= settings.max_concurrency_per_key <= limits.MAX_CONCURRENCY
        and (rate is None or _is_rate(rate))
    )


def _is_rate(rate: RateLimit) -> bool:
    return (
        0 < rate.executions <= limits.MAX_RATE
        and 0 < rate.per_ms <= limits.MAX_RATE_PERIOD_MS
        and 0 < rate.burst <= limits.MAX_RATE
    )


def is_sound_timetable(timetable: Timetable) -> bool:
    """A timetable: its size and numbers. What it means is its author's and the planner's."""
    numbers = (
        (timetable.start_ms, limits.MAX_TIME_MS),
        (timetable.until_ms, limits.MAX_TIME_MS),
        (timetable.max_runs, limits.MAX_SETTING),
        (timetable.jitter_ms, limits.MAX_DURATION_MS),
        (timetable.catch_up_window_ms, limits.MAX_DURATION_MS),
        (timetable.catch_up_limit, limits.MAX_CAUGHT_UP),
    )
    return (
        0 < len(timetable.rules) <= limits.MAX_RULES
        and len(timetable.exclusions) <= limits.MAX_RULES
        and timetable.overlap in OVERLAPS
        and timetable.catch_up in ("none", "one", "all")
        and all(0 <= number <= highest for number, highest in numbers)
        and all(_is_small(part) for part in (*timetable.rules, *timetable.exclusions))
    )


def _is_small(part: Every | Cron | At | Dates | Window) -> bool:
    match part:
        case Every(interval_ms, anchor_ms):
            return (
                0 < interval_ms <= limits.MAX_DURATION_MS and 0 <= anchor_ms <= limits.MAX_TIME_MS
            )
        case At(times_ms):
            return 0 < len(times_ms) <= limits.MAX_TIMES
        case Dates(days, time_zone):
            return 0 < len(days) <= limits.MAX_TIMES and len(time_zone) <= limits.MAX_KEY_CHARS
        case Cron(expression, time_zone) | Window(expression, time_zone):
            return (
                len(expression) <= limits.MAX_EXPRESSION_CHARS
                and len(time_zone) <= limits.MAX_KEY_CHARS
            )
