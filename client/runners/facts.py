"""What a runner tells about an execution: one table, as environment variables and as headers."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

import msgspec

from timeball.client.context import NonRetryable
from timeball.client.messages import Delivery

FACTS = (
    "execution_id",
    "job_id",
    "queue",
    "token",
    "attempt",
    "max_attempts",
    "nominal_ms",
    "due_ms",
    "timeout_ms",
    "idempotency_key",
)
"""The fields of a `Delivery` that are told, in this order."""

IDEMPOTENCY_HEADER = "Idempotency-Key"
"""The header that others know; the other facts have `Timeball-…` headers."""

_PLAIN = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")


class NotTold(NonRetryable):
    """The execution can not be told to a command or a server: no attempt will."""


def environment(delivery: Delivery) -> dict[str, str]:
    """Tell the facts as environment variables, such as TIMEBALL_EXECUTION_ID."""
    told = {f"TIMEBALL_{name.upper()}": str(getattr(delivery, name)) for name in FACTS}
    for name, value in told.items():
        if "\0" in value:
            raise NotTold(f"{name} would hold a NUL character, which no environment can")
    return told


def headers(delivery: Delivery) -> dict[str, str]:
    """Tell the facts as headers, such as Timeball-Execution-Id and Idempotency-Key."""
    return {header_name(name): in_header(str(getattr(delivery, name))) for name in FACTS}


def header_name(fact: str) -> str:
    """Give the header that tells a fact."""
    if fact == "idempotency_key":
        return IDEMPOTENCY_HEADER
    return "Timeball-" + "-".join(word.capitalize() for word in fact.split("_"))


def in_header(text: str) -> str:
    """Write a text so that any header can carry it, and no two texts alike.

    What is not visible ASCII becomes percent-encoded UTF-8; so does the percent sign.
    """
    return quote(text, safe=_PLAIN)


def payload_json(payload: object) -> bytes:
    """Write the payload as JSON; byte strings as Base64. Raises `NotTold` if it has no JSON."""
    try:
        return msgspec.json.encode(payload)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotTold(f"the payload has no form in JSON: {error}") from error


def reserved_headers() -> Mapping[str, str]:
    """Name the headers that a runner sets itself, in lower case."""
    own = ("Content-Type", "Content-Length", "Transfer-Encoding", "Accept-Encoding", "Host")
    return {name.lower(): name for name in (*own, *map(header_name, FACTS))}
