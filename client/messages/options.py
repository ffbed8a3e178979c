"""What few jobs ask for, beside their queue: who gets them, how many at a time, and until when."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from timeball.client.messages.fields import MAX_DELAY_MS, Request

MAX_TAG = 64
MAX_TAGS = 16
"""Tags of a job, and as many that its workers must offer."""
MAX_OFFERED = 64
"""Tags that a claim offers."""

Tag = Annotated[str, Meta(min_length=1, max_length=MAX_TAG)]
Tags = Annotated[tuple[Tag, ...], Meta(max_length=MAX_TAGS)]
"""A set: order and repeats mean nothing."""
ExpiresAfter = Annotated[int, Meta(ge=1, le=MAX_DELAY_MS)]


class JobOptions(Request, frozen=True, kw_only=True):
    """What a job can ask for whether it recurs or not.

    Of the jobs of a queue that share a `concurrency_key` only so many are leased at a time, by
    the queue's settings. Only claims whose `tags` hold all of `requires` get its executions.
    `tags` are for finding it. No attempt of an execution begins `expires_after_ms` after its
    nominal time or later: it is skipped then.
    """

    concurrency_key: Annotated[str, Meta(max_length=255)] = ""
    requires: Tags = ()
    tags: Tags = ()
    expires_after_ms: ExpiresAfter | None = None
