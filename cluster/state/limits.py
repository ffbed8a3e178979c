"""The bounds that `apply` itself enforces, whatever reaches it through the log.

The edges refuse or clip earlier and say so in words; these are the last line, the
same on every node and therefore part of the replicated rules.
"""

from __future__ import annotations

from typing import Final

MAX_TIME_MS: Final = 253_402_300_799_999
"""The end of the year 9999 (UTC): no instant in the state is later."""

MAX_DURATION_MS: Final = 100 * 366 * 86_400_000
"""A hundred years: no delay, lease, timeout or backoff is longer."""

MAX_LEAD_MS: Final = 100
"""How long before its due time, by log-time, an execution may be leased at the earliest: for
a claim that is answered when it is due (see `dispatch.ahead`)."""

MAX_QUEUE_CHARS: Final = 200
MAX_QUEUES = 10_000
"""Queues that hold at least one kept job, at one moment."""
MAX_CONFIGURED_QUEUES = 10_000
"""Queues whose settings are other than the default, with or without jobs."""
MAX_CONCURRENCY: Final = 1_000_000
MAX_RATE: Final = 1_000_000
"""Executions of a rate limit, and of its burst."""
MAX_RATE_PERIOD_MS: Final = 86_400_000
MAX_PAYLOAD_BYTES: Final = 1_048_576
MAX_RESULT_BYTES: Final = 1_048_576
MAX_PROGRESS_BYTES: Final = 1_024
MAX_KEY_CHARS: Final = 256
"""Idempotency keys, partition keys and request ids."""
MAX_FINGERPRINT_BYTES: Final = 64
MAX_WORKER_CHARS: Final = 200
MAX_INSTRUCTIONS = 1_000
"""Workers that are told something."""
INSTRUCTION_KEPT_MS: Final = 86_400_000
"""How long they are."""
MAX_ERROR_TYPE_CHARS: Final = 200
MAX_ERROR_MESSAGE_CHARS: Final = 2_000
MAX_BACKTRACE_CHARS: Final = 8_192
MAX_ATTEMPTS: Final = 2**31 - 1
MAX_MULTIPLIER_PCT: Final = 10_000
MAX_DELAYS: Final = 50
"""Delays that a retry policy lists."""
MAX_NON_RETRYABLE_ERRORS: Final = 16
"""Error types that a retry policy names."""
MAX_TAGS: Final = 16
"""Tags of a job, and as many that its workers must offer."""
MAX_TAG_CHARS: Final = 64
MAX_REQUIREMENTS: Final = 256
"""Different sets of tags that the jobs of one queue require, without the empty one."""
MAX_OCCURRENCES_PER_ADVANCE: Final = 1_000
MAX_SETTING: Final = 10**12
MAX_RULES: Final = 16
"""Of a timetable, and as many exclusions."""
MAX_TIMES: Final = 1_000
"""Instants of one rule, and days of one exclusion."""
MAX_EXPRESSION_CHARS: Final = 256
MAX_REASON_CHARS: Final = 500
MAX_CAUGHT_UP: Final = 10_000

LEDGER_KEPT: Final = 100
"""Lines of a job's ledger."""

ATTEMPTS_KEPT: Final = 25
"""Of an execution's attempts, the latest so many are kept; the numbers tell of the rest."""

TRIM_STEP: Final = 256
"""An entry trims at most so many old records of a kind, beyond as many as it touched."""
