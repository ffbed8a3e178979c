"""HTTP-05: numbers are strict, in every integer field of every request, and refused by name."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from timeball.client.errors import InvalidRequest
from timeball.client.messages import Request
from timeball.cluster.http import paging
from timeball.cluster.http.codec import BodyDecoder
from timeball.cluster.http.operations import OPERATIONS

LISTS = (inspect.ListType, inspect.VarTupleType)
SLOT = "@"
"""Stands for the number in a document."""
NUMBERS_OF_NO_FIELD = [
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "-0.0", "0.0", "1.0", "1.5", "5e0", "1e3"),
    *("true", "false", '"5"', '""', '"NaN"', "[]", "[5]", "{}"),
    *(str(2**63), str(2**64), str(10**30), str(-(10**30))),
]
BODIES: list[type[Request]] = sorted(
    {
        operation.body
        for table in OPERATIONS.values()
        for operation in table.values()
        if operation.body is not None
    },
    key=lambda body: body.__name__,
)


def alternatives(kind: inspect.Type) -> list[inspect.Type]:
    """What a type may be, without what is only said of it."""
    bare = kind.type if isinstance(kind, inspect.Metadata) else kind
    if not isinstance(bare, inspect.UnionType):
        return [bare]
    return [part for inner in bare.types for part in alternatives(inner)]


def example(kind: inspect.Type) -> Any:
    """The least document of a type."""
    first = alternatives(kind)[0]
    if isinstance(first, inspect.StructType):
        document = {each.encode_name: example(each.type) for each in first.fields if each.required}
        return document | ({first.tag_field: first.tag} if first.tag_field else {})
    if isinstance(first, LISTS):
        return [example(first.item_type)]
    if isinstance(first, inspect.IntType):
        return first.ge or 0
    if isinstance(first, inspect.LiteralType):
        return first.values[0]
    return "2030-01-01T00:00:00Z"


def slots(kind: inspect.Type) -> Iterator[tuple[Any, inspect.IntType, bool]]:
    """Documents with a slot for one integer: its type, and whether it may be null.

    Fields that take text too are instants: they are read by another hand (TIMR-01).
    """
    kinds = alternatives(kind)
    if any(isinstance(inner, inspect.StrType) for inner in kinds):
        return
    for inner in kinds:
        if isinstance(inner, inspect.IntType):
            yield SLOT, inner, any(isinstance(each, inspect.NoneType) for each in kinds)
        elif isinstance(inner, inspect.StructType):
            for each in inner.fields:
                for found, number, nullable in slots(each.type):
                    yield example(inner) | {each.name: found}, number, nullable
        elif isinstance(inner, LISTS):
            for found, number, nullable in slots(inner.item_type):
                yield [found], number, nullable


def all_slots() -> list[Any]:
    return [
        pytest.param(body, *found, id=f"{body.__name__}.{name_of_slot(found[0])}")
        for body in BODIES
        for found in slots(inspect.type_info(body))
    ]


def blamed(body: type[Request], raw: bytes, form: Any = "json") -> str:
    with pytest.raises(InvalidRequest) as caught:
        BodyDecoder(body).decode(raw, form)
    assert caught.value.status == 400
    (error,) = caught.value.errors
    return error.field


def name_of_slot(document: Any, path: str = "") -> str:
    """The path of the slot as a client writes it."""
    parts = document.items() if isinstance(document, dict) else enumerate(document)
    for name, part in parts:
        inner = f"{path}[{name}]" if isinstance(name, int) else f"{path}.{name}".lstrip(".")
        if part == SLOT:
            return inner
        if isinstance(part, dict | list) and (found := name_of_slot(part, inner)):
            return found
    return ""


@pytest.mark.parametrize(("body", "document", "number", "nullable"), all_slots())
def test_http05_an_integer_is_an_integer_within_its_range(
    body: type[Request], document: Any, number: inspect.IntType, nullable: bool
) -> None:
    name = name_of_slot(document)
    template = msgspec.json.encode(document)
    assert number.ge is not None, f"{name} has no least value"
    assert number.le is not None, f"{name} has no greatest value"
    outside = [str(number.ge - 1), str(number.le + 1), str(-(10**9))]
    for text in (*NUMBERS_OF_NO_FIELD, *outside, *([] if nullable else ["null"])):
        raw = template.replace(b'"@"', text.encode())
        assert blamed(body, raw) == name, text
    for value in (number.ge, number.le):
        BodyDecoder(body).decode(template.replace(b'"@"', b"%d" % value), "json")


@pytest.mark.parametrize(("body", "document", "number", "nullable"), all_slots())
def test_http05_the_same_in_messagepack(
    body: type[Request], document: Any, number: inspect.IntType, nullable: bool
) -> None:
    name = name_of_slot(document)
    template = msgspec.msgpack.encode(document)
    slot = msgspec.msgpack.encode(SLOT)
    assert number.le is not None
    for value in (math.nan, math.inf, -math.inf, -0.0, 1.0, 1.5, True, "5", [], {}, number.le + 1):
        raw = template.replace(slot, msgspec.msgpack.encode(value))
        assert blamed(body, raw, "msgpack") == name, value


def test_http05_every_request_with_numbers_is_here() -> None:
    assert {
        "NewJob.priority",
        "NewJob.retry.max_attempts",
        "NewJob.retry.delays_ms[0]",
        "NewJob.schedule.delay_ms",
        "NewJobs.jobs[0].priority",
        "Claim.max_executions",
        "Claim.lease_ms",
        "Failures.items[0].retry_after_ms",
        "SingleHold.token",
    } <= {str(slot.id) for slot in all_slots()}


@pytest.mark.parametrize(
    "text",
    [
        *("NaN", "Infinity", "1e999", "-0.0", "true", "1.5", "5e0", "null", "", "[]", "+5", " 5"),
        *("0x5", "5_0", "٥", "0", "-1", "1000000000", str(10**30)),
    ],
)
def test_http05_limits_of_lists(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        paging.read_limit({"limit": text})
    assert caught.value.errors[0].field == "limit"
