"""Bytes to messages and back: content negotiation and strict decoding.

Both forms are decoded by the same typed definitions. Whatever a decoder dislikes becomes
an InvalidRequest that names the field; nothing that a client sends raises anything else.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from timeball.client.errors import (
    InvalidRequest,
    NotAcceptable,
    TooLarge,
    UnsupportedMediaType,
)
from timeball.client.messages import MAX_BATCH, MAX_PAYLOAD_BYTES, QUEUE_NAME, FieldError
from timeball.cluster.http.exchange import Form
from timeball.cluster.http.values import MAX_DEPTH
from timeball.cluster.validation import MAX_FIELD, blame

Message = TypeVar("Message")

CONTENT_TYPES: dict[Form, str] = {"json": "application/json", "msgpack": "application/msgpack"}
PROBLEM_TYPES: dict[Form, str] = {
    "json": "application/problem+json",
    "msgpack": "application/problem+msgpack",
}
_FORMS: dict[str, Form] = {
    "application/json": "json",
    "application/problem+json": "json",
    "application/msgpack": "msgpack",
    "application/x-msgpack": "msgpack",
    "application/vnd.msgpack": "msgpack",
    "application/problem+msgpack": "msgpack",
}
_ANY = ("*/*", "application/*")

_msgpack = msgspec.msgpack.Encoder()
_canonical = msgspec.msgpack.Encoder(order="deterministic")
_json = msgspec.json.Encoder()


# --- negotiation -----------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def negotiate(accept: str, content_type: str | None) -> tuple[Form | None, Form]:
    """The forms of a body and of its answer; a `content_type` of None: there is no body.

    Raises NotAcceptable and UnsupportedMediaType.
    """
    answer = answer_form(accept, "json")
    if content_type is None:
        return None, answer
    body = body_form(content_type)
    return body, answer_form(accept, body)


def body_form(content_type: str) -> Form:
    """The form of a body, by its Content-Type; raises UnsupportedMediaType."""
    form = _FORMS.get(content_type.partition(";")[0].strip().lower())
    if form is None:
        raise UnsupportedMediaType(
            f"{repr(content_type[:100]) if content_type else 'no content type'}: "
            "send application/json or application/msgpack"
        )
    return form


def answer_form(accept: str, default: Form) -> Form:
    """The form of the answer: the best that `accept` allows; raises NotAcceptable.

    An empty header, and a tie that includes the default, are decided by `default`.
    """
    if not accept.strip():
        return default
    best: Form | None = None
    best_quality = 0.0
    for choice in accept.split(","):
        kind, _, parameters = choice.partition(";")
        kind = kind.strip().lower()
        form = default if kind in _ANY else _FORMS.get(kind)
        quality = _quality(parameters)
        if form is None or quality == 0:
            continue
        if quality > best_quality or (quality == best_quality and form == default):
            best, best_quality = form, quality
    if best is None:
        raise NotAcceptable(f"{accept[:100]!r}: accept application/json or application/msgpack")
    return best


def _quality(parameters: str) -> float:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                quality = float(value)
            except ValueError:
                return 0.0
            return quality if 0 <= quality <= 1 else 0.0
    return 1.0


# --- bodies ----------------------------------------------------------------------------------


class BodyDecoder:
    """Decodes one kind of message from either form."""

    def __init__(self, kind: type[Any], default: Any = None) -> None:
        """`default` is what no body at all means; None: there must be one."""
        self.kind = kind
        self.optional = default is not None
        self._default = default
        self._decoders: dict[Form, Callable[[bytes], Any]] = {
            "json": msgspec.json.Decoder(kind).decode,
            "msgpack": msgspec.msgpack.Decoder(kind).decode,
        }

    def decode(self, body: bytes, form: Form | None) -> Any:
        """Decode a body; raises InvalidRequest or TooLarge, naming the field at fault."""
        if not body and self._default is not None:
            return self._default
        if form is None or not body:
            raise InvalidRequest.at("body", "this request needs a body")
        try:
            return self._decoders[form](body)
        except msgspec.ValidationError as error:
            raise _refusal(*blame(error)) from error
        except msgspec.DecodeError as error:
            raise _malformed(body, form, str(error)) from error
        except RecursionError as error:
            raise InvalidRequest.at("body", f"nested more than {MAX_DEPTH} deep") from error


_BATCHES = ("jobs", "items", "execution_ids")


def _refusal(field: str, detail: str) -> InvalidRequest:
    field = field or "body"
    if field in _BATCHES and detail == f"Expected `array` of length <= {MAX_BATCH}":
        detail = f"more than {MAX_BATCH} items"
        return TooLarge(f"{field}: {detail}", errors=[FieldError(field=field, detail=detail)])
    return InvalidRequest.at(field, detail)


def _malformed(body: bytes, form: Form, detail: str) -> InvalidRequest:
    """Blame the field that holds the damage, when the document around it can be read."""
    field = _damaged_field(body, form) if "UTF-8" in detail or form == "json" else ""
    if not field and form == "json" and len(body) <= MAX_PAYLOAD_BYTES:
        field, constant = _constant_field(body)
        detail = f"{constant} is not a number" if field else detail
    return InvalidRequest.at(field or "body", detail)


class _Constant(str):
    """NaN or an infinity, which JSON does not have but many write."""

    __slots__ = ()


def _constant_field(body: bytes) -> tuple[str, str]:
    """The field that holds NaN or an infinity, and which; empty if that is not what is wrong."""
    try:
        document = json.loads(body, parse_constant=_Constant)
    except (ValueError, RecursionError):
        return "", ""
    within: list[tuple[str, Any]] = [("", document)]
    while within:
        path, part = within.pop()
        if isinstance(part, _Constant):
            return path[:MAX_FIELD], part
        if isinstance(part, dict):
            within += [(f"{path}.{name}".removeprefix("."), inner) for name, inner in part.items()]
        elif isinstance(part, list):
            within += [(f"{path}[{place}]", inner) for place, inner in enumerate(part)]
    return "", ""


def _damaged_field(body: bytes, form: Form) -> str:
    decode: Any = msgspec.json.decode if form == "json" else msgspec.msgpack.decode
    path = ""
    raw = body
    for _ in range(MAX_DEPTH):
        parts = _split(raw, decode)
        for name, part in parts:
            try:
                decode(part)
            except (msgspec.DecodeError, RecursionError):
                path += f".{name}" if isinstance(name, str) else f"[{name}]"
                raw = bytes(part)
                break
        else:
            break
    return path.removeprefix(".")[:MAX_FIELD]


def _split(raw: bytes, decode: Any) -> list[tuple[str | int, msgspec.Raw]]:
    for shape in (dict[str, msgspec.Raw], list[msgspec.Raw]):
        try:
            found = decode(raw, type=shape)
        except (msgspec.DecodeError, RecursionError):
            continue
        return list(found.items()) if isinstance(found, dict) else list(enumerate(found))
    return []


def encode(message: Any, form: Form) -> bytes:
    """Encode an answer."""
    return _json.encode(message) if form == "json" else _msgpack.encode(message)


def check_queue_name(name: str, prefix: str = "") -> None:
    """Raise InvalidRequest for the field `queue` after `prefix` when no queue can be named so."""
    if not _can_name_queue(name):
        detail = f"expected a name that matches {QUEUE_NAME}, got {name[:80]!r}"
        raise InvalidRequest.at(f"{prefix}queue", detail)


@functools.lru_cache(maxsize=1024)
def _can_name_queue(name: str) -> bool:
    """Most requests name one of a few queues, and matching a pattern is slow."""
    return re.match(QUEUE_NAME, name) is not None


def fingerprint(*fields: Any) -> bytes:
    """A hash of a request's meaning, equal for its two forms and any order of map keys."""
    return hashlib.blake2b(_canonical.encode(fields), digest_size=8).digest()
