"""What a handler tells of how far it has come, checked before it rides on a heartbeat.

Heartbeats of many leases share a request: what the node would refuse must not get into one.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from timeball.client.errors import InvalidRequest
from timeball.client.flow import encode_request
from timeball.client.messages import MAX_PROGRESS_BYTES

_DEEPEST = 16
_PLAIN = (type(None), bool, int, float, str, bytes)


def pack_progress(value: object) -> bytes:
    """Encode a value as MessagePack.

    Raises TypeError for what JSON does not have (but bytes, which become text there), and
    ValueError for what is too large, too deep, or no number.
    """
    try:
        packed = encode_request(value)
    except InvalidRequest as error:
        raise TypeError(f"the progress: {error}") from error
    if len(packed) > MAX_PROGRESS_BYTES:
        raise ValueError(
            f"the progress takes {len(packed)} bytes as MessagePack, at most {MAX_PROGRESS_BYTES}"
        )
    _check(msgspec.msgpack.decode(packed), _DEEPEST)
    return packed


def _check(value: Any, depth: int) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"the progress holds {value}, which is not a number")
    if isinstance(value, dict | list):
        if not depth:
            raise ValueError(f"the progress is nested more than {_DEEPEST} deep")
        if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
            raise TypeError("the keys of a map in the progress must be text")
        for inner in value.values() if isinstance(value, dict) else value:
            _check(inner, depth - 1)
    elif not isinstance(value, _PLAIN):
        raise TypeError(f"the progress holds a {type(value).__name__}, which JSON does not have")
