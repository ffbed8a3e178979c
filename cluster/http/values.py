"""Values that travel through: payloads, results and progress."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from timeball.client.errors import InvalidRequest, TooLarge
from timeball.client.messages import MAX_PAYLOAD_BYTES, FieldError
from timeball.cluster.http.exchange import Form

MAX_DEPTH: Final = 64
"""Deepest nesting of lists and maps in a payload or result."""
MIN_INTEGER: Final = -(2**63)
MAX_INTEGER: Final = 2**64 - 1
EMPTY: Final = b"\xc0"
"""MessagePack's nil: a payload or result that was not given."""

_msgpack: Final = msgspec.msgpack.Encoder()
_Raw: Final = msgspec.Raw


def pack_value(value: Any, field: str, most: int = MAX_PAYLOAD_BYTES) -> bytes:
    """Encode a decoded payload, result or progress as MessagePack, the form in which it is kept.

    Raises InvalidRequest naming `field` for what only one of the two forms could carry
    (extension types, NaN and infinities, integers beyond 64 bits, keys that are not text),
    and TooLarge beyond `most` bytes.
    """
    if value is None:
        return EMPTY
    if type(value) not in _SOUND:
        _check_value(value, field)
    try:
        packed = _msgpack.encode(value)
    except OverflowError as error:
        raise InvalidRequest.at(
            field, f"an integer is outside of {MIN_INTEGER} to {MAX_INTEGER}"
        ) from error
    if len(packed) > most:
        detail = f"{len(packed)} bytes as MessagePack, more than {most}"
        raise TooLarge(f"{field}: {detail}", errors=[FieldError(field=field, detail=detail)])
    return packed


_SOUND: Final = frozenset({type(None), str, bool, int, bytes})
"""What both forms carry, whatever its value; the encoder itself refuses integers too large."""


def _check_value(value: Any, field: str, depth: int = 1) -> None:
    """Look into whatever may hide something unsound; `depth` bounds the recursion."""
    kind = type(value)
    if kind is float:
        if not math.isfinite(value):
            raise InvalidRequest.at(field, f"{value} is not a number")
    elif depth > MAX_DEPTH:
        raise InvalidRequest.at(field, f"nested more than {MAX_DEPTH} deep")
    elif kind is dict:
        for key, inner in value.items():
            if type(key) is not str:
                raise InvalidRequest.at(field, "the keys of a map must be text")
            if type(inner) not in _SOUND:
                _check_value(inner, field, depth + 1)
    elif kind is list:
        for inner in value:
            if type(inner) not in _SOUND:
                _check_value(inner, field, depth + 1)
    else:
        raise InvalidRequest.at(field, "extension types are not supported")


def show_value(packed: bytes, form: Form) -> Any:
    """A kept payload or result, ready to be put into an answer of that form."""
    if not packed:
        return None
    return _Raw(packed) if form == "msgpack" else msgspec.msgpack.decode(packed)
