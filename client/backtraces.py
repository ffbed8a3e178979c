"""What a failed attempt tells of where its error was raised."""

from __future__ import annotations

import traceback

from timeball.client.messages import MAX_BACKTRACE

MAX_FRAMES = 50
"""Of each exception of a chain, the innermost so many: those of a recursion are all alike."""


def backtrace_of(error: BaseException) -> str:
    """Render where an exception was raised, its causes too; the end, if that is too long.

    Never raises, and is valid UTF-8. Empty for one that was not raised.
    """
    if error.__traceback__ is None:
        return ""
    try:
        text = "".join(traceback.format_exception(error, limit=-MAX_FRAMES))
    except Exception as broken:  # noqa: BLE001 (what a user's exception does when it is rendered)
        text = f"no backtrace: {type(broken).__name__} while it was rendered"
    mark = "[…] "
    if len(text) > MAX_BACKTRACE:
        text = mark + text[len(mark) - MAX_BACKTRACE :]
    return text.encode("utf-8", "replace").decode()
