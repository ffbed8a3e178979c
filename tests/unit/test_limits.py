"""What the edge lets through, the state takes: their limits agree."""

from __future__ import annotations

import pytest

from timeball.client import messages
from timeball.cluster.state import limits
from timeball.wheel import PRIORITIES


def test_one_horizon_of_time():
    assert limits.MAX_DURATION_MS == messages.MAX_DELAY_MS
    assert limits.MAX_TIME_MS == messages.MAX_INSTANT_MS
    assert PRIORITIES == 10, "the wire says 0 to 9"


@pytest.mark.parametrize(
    ("edge", "state"),
    [
        (messages.MAX_PAYLOAD_BYTES, limits.MAX_PAYLOAD_BYTES),
        (messages.MAX_PAYLOAD_BYTES, limits.MAX_RESULT_BYTES),
        (messages.MAX_ERROR_TYPE, limits.MAX_ERROR_TYPE_CHARS),
        (messages.MAX_ERROR_MESSAGE, limits.MAX_ERROR_MESSAGE_CHARS),
        (messages.MAX_BACKTRACE, limits.MAX_BACKTRACE_CHARS),
        (50, limits.MAX_DELAYS),
        (16, limits.MAX_NON_RETRYABLE_ERRORS),
        (255, limits.MAX_KEY_CHARS),
        (128, limits.MAX_WORKER_CHARS),
        (64, limits.MAX_QUEUE_CHARS),
    ],
)
def test_the_state_takes_whatever_the_edge_lets_through(edge: int, state: int):
    assert edge <= state
