"""The result that an output becomes: its JSON value, or its text, within what the cluster keeps."""

from __future__ import annotations

import msgspec

from timeball.client.messages import MAX_PAYLOAD_BYTES

MAX_OUTPUT_BYTES = MAX_PAYLOAD_BYTES - 256
"""Of an output, so many bytes are kept; the rest of a result is for the mark that says so."""


def result_of(output: bytes, dropped: int = 0) -> object:
    """Make a result of an output, of which `dropped` bytes were not kept.

    JSON becomes its value, if the cluster can keep it; any other output its text, with a mark
    where something is missing; no output nothing.
    """
    if dropped == 0:
        if not output.strip():
            return None
        try:
            value = msgspec.json.decode(output)
            if len(msgspec.msgpack.encode(value)) <= MAX_PAYLOAD_BYTES:
                return value
        except (msgspec.DecodeError, ValueError, TypeError, OverflowError, RecursionError):
            return _text(output, 0)
    return _text(output, dropped)


def _text(output: bytes, dropped: int) -> str:
    text = output.decode("utf-8", "replace").removesuffix("\n")
    encoded = text.encode()
    excess = max(0, len(encoded) - MAX_OUTPUT_BYTES)
    kept = encoded[excess:].decode("utf-8", "ignore")
    missing = dropped + excess
    return f"[{missing} bytes left out] {kept}" if missing else kept


def last_words(output: bytes, characters: int) -> str:
    """Give the end of an output as text, for a message."""
    text = output.decode("utf-8", "replace").strip()
    return text if len(text) <= characters else "…" + text[-(characters - 1) :]


class Tail:
    """The last bytes of a stream: bounded, however much comes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self.dropped = 0

    def add(self, data: bytes) -> None:
        """Take what came, and let go of what is too old."""
        self._kept += data
        if (excess := len(self._kept) - self._limit) > 0:
            del self._kept[:excess]
            self.dropped += excess

    @property
    def kept(self) -> bytes:
        """What is kept."""
        return bytes(self._kept)
