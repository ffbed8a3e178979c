"""What came of a handler: a result to keep or an error to report, each fit for the wire."""

from __future__ import annotations

import traceback
from typing import NamedTuple

import msgspec

from timeball.client.backtraces import backtrace_of
from timeball.client.context import NonRetryable, RetryLater
from timeball.client.errors import InvalidRequest
from timeball.client.flow import encode_request
from timeball.client.messages import MAX_ERROR_MESSAGE, MAX_ERROR_TYPE, MAX_PAYLOAD_BYTES


class Told(Exception):
    """An error that was rendered elsewhere, in the handler's own process."""

    def __init__(self, told: Failed) -> None:
        super().__init__(f"{told.error_type}: {told.message}")
        self.told = told


class Failed(NamedTuple):
    """An attempt that failed, as its report tells it."""

    error_type: str
    message: str
    retry_after_ms: int | None = None
    non_retryable: bool = False
    backtrace: str = ""


def failed(error: BaseException) -> Failed:
    """Render an exception for the wire: never raising, clipped, valid UTF-8."""
    if isinstance(error, Told):
        return error.told
    return Failed(
        error_type=type(error).__qualname__[:MAX_ERROR_TYPE],
        message=_message(error),
        retry_after_ms=error.after_ms if isinstance(error, RetryLater) else None,
        non_retryable=isinstance(error, NonRetryable),
        backtrace=backtrace_of(error),
    )


def encode_result(result: object) -> msgspec.Raw:
    """Encode a handler's result; raises TypeError or ValueError when it can not be kept."""
    if isinstance(result, msgspec.Raw):
        return result
    try:
        encoded = encode_request(result)
    except InvalidRequest as error:
        raise TypeError(f"the handler's result: {error}") from error
    if len(encoded) > MAX_PAYLOAD_BYTES:
        size = f"{len(encoded)} bytes, at most {MAX_PAYLOAD_BYTES}"
        raise ValueError(f"the handler's result has {size}")
    return msgspec.Raw(encoded)


def _message(error: BaseException) -> str:
    text = "".join(traceback.format_exception_only(error)).strip()
    module = type(error).__module__
    kind = type(error).__qualname__
    for prefix in (f"{module}.{kind}", kind):
        if text.startswith(prefix):
            text = text[len(prefix) :].removeprefix(":").strip()
            break
    if len(text) > MAX_ERROR_MESSAGE:
        text = text[: MAX_ERROR_MESSAGE - 1] + "…"
    return text.encode("utf-8", "replace").decode()
