"""The description of the whole interface as an OpenAPI 3.1 document.

Schemas come from the messages themselves, requests from the table in `operations`. The document
is made once and is the same on every node of a release.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

import click
import msgspec

from timeball.client.errors import PROBLEM_PREFIX
from timeball.client.messages import Problem
from timeball.cluster.http.codec import CONTENT_TYPES, PROBLEM_TYPES
from timeball.cluster.http.description import Operation, Parameter, Refusal, Reply
from timeball.cluster.http.event_views import EVENT_STREAM
from timeball.cluster.http.exchange import Request, Response
from timeball.cluster.http.operations import FRESHNESS, OPERATIONS, PATHS
from timeball.cluster.http.paging import read_query
from timeball.cluster.http.routes import Route

OPENAPI = "3.1.0"
_SCHEMAS = "#/components/schemas/{name}"
_ABOUT = """Timeball, a replicated job scheduler. Any node takes any request.

Every message has two forms, JSON and MessagePack: `Content-Type` says what the body is, `Accept`
what the answer should be (default: as the request; JSON when there is no body). Unknown fields
and query parameters are refused by name; an integer is written without a fraction. Every
status of 400 or more is a problem document (RFC
9457) whose `type` is stable. What a schema cannot say (cron expressions, time zones, instants,
sizes) is refused with 400 or 413 by the name of the field. HEAD is answered wherever GET is;
any other method by 405 with `Allow`. The protocol's own text is docs/protocol.md."""

_HEADERS: dict[str, dict[str, Any]] = {
    "Timeball-Applied-Index": {
        "description": "How far the state was that the answer was given from: a `min_index`.",
        "required": True,
        "schema": {"type": "integer", "minimum": 0},
    },
    "ETag": {
        "description": "The version, for `If-Match`.",
        "required": True,
        "schema": {"type": "string", "pattern": '^"([1-9][0-9]*-)?(0|[1-9][0-9]*)"$'},
    },
    "Location": {
        "description": "The path of what was made.",
        "required": True,
        "schema": {"type": "string", "pattern": "^/v1/(jobs|executions)/[0-9-]+$"},
    },
    "Retry-After": {
        "description": "When to come again, in seconds.",
        "schema": {"type": "integer", "minimum": 1},
    },
}
_WITH_RETRY = (429, 503, 507)


class Description:
    """The handler of the document."""

    def __init__(self) -> None:
        document()  # made before anybody waits for it

    def routes(self) -> list[Route]:
        """The table of this noun."""
        return [
            Route(method="GET", pattern="/v1/openapi.json", handler=self.openapi, plain=True),
        ]

    async def openapi(self, request: Request) -> Response:
        """The document, the same for all."""
        read_query(request.query, ())
        return Response(200, document(), "application/json")


@click.command()
def openapi() -> None:
    """Print the description of the HTTP interface (OpenAPI 3.1)."""
    click.echo(msgspec.json.format(document(), indent=2))


@functools.cache
def document() -> bytes:
    """The document, as JSON."""
    return msgspec.json.encode(build())


def build() -> dict[str, Any]:
    """The document, from the table."""
    schemas = _Schemas(_types(OPERATIONS.values()))
    paths: dict[str, dict[str, Any]] = {}
    responses: dict[str, Any] = {}
    for tag, table in OPERATIONS.items():
        for route, operation in table.items():
            method, path = route.split(" ")
            described = _operation(path, operation, schemas, responses)
            paths.setdefault(path, {})[method.lower()] = {"tags": [tag], **described}
    return {
        "openapi": OPENAPI,
        "info": {
            "title": "Timeball",
            "version": version("timeball"),
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in OPERATIONS],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "responses": dict(sorted(responses.items())),
            "headers": _HEADERS,
        },
    }


class _Schemas:
    """The schemas of types, whose patterns are those of JSON Schema instead of Python's."""

    def __init__(self, types: Sequence[Any]) -> None:
        schemas, components = msgspec.json.schema_components(types, ref_template=_SCHEMAS)
        self._schemas = {
            kind: _portable(schema) for kind, schema in zip(types, schemas, strict=True)
        }
        self.components: dict[str, Any] = _portable(components)

    def of(self, kind: Any) -> dict[str, Any]:
        """The schema, or the reference to it."""
        return dict(self._schemas[kind])


def _portable(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            name: re.sub(r"\A\\A(.*)\\Z\Z", r"^\1$", part)
            if name == "pattern" and isinstance(part, str)
            else _portable(part)
            for name, part in schema.items()
        }
    return [_portable(part) for part in schema] if isinstance(schema, list) else schema


def _types(tables: Iterable[dict[str, Operation]]) -> list[Any]:
    found: list[Any] = [Problem, *(parameter.kind for parameter in (*FRESHNESS, *PATHS.values()))]
    for table in tables:
        for operation in table.values():
            found += [parameter.kind for parameter in operation.parameters]
            found += [reply.message for reply in operation.replies.values() if reply.message]
            found += [operation.body] if operation.body else []
    return list(dict.fromkeys(found))


def _operation(
    path: str, operation: Operation, schemas: _Schemas, responses: dict[str, Any]
) -> dict[str, Any]:
    described: dict[str, Any] = {"operationId": operation.id, "summary": operation.does}
    parameters = [
        *(PATHS[name] for name in re.findall(r"{(\w+)}", path)),
        *(FRESHNESS if operation.kind == "read" else ()),
        *operation.parameters,
    ]
    if parameters:
        described["parameters"] = [_parameter(each, schemas) for each in parameters]
    if operation.body is not None:
        schema = schemas.of(operation.body)
        described["requestBody"] = {
            "required": operation.body_required,
            "content": {media: {"schema": schema} for media in CONTENT_TYPES.values()},
        }
    described["responses"] = {
        **{str(status): _reply(reply, schemas) for status, reply in operation.replies.items()},
        **_problems(operation.all_problems(), schemas, responses),
    }
    return described


def _parameter(parameter: Parameter, schemas: _Schemas) -> dict[str, Any]:
    schema = schemas.of(parameter.kind)
    if parameter.default is not None:
        schema["default"] = parameter.default
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "description": parameter.about,
        "schema": schema,
    }


def _reply(reply: Reply, schemas: _Schemas) -> dict[str, Any]:
    if reply.message is None:
        kind = "object" if reply.media_type == CONTENT_TYPES["json"] else "string"
        content = {reply.media_type: {"schema": {"type": kind}}}
        headers = {"headers": _headers(*reply.headers)} if reply.headers else {}
        return {"description": reply.when, **headers, "content": content}
    schema = schemas.of(reply.message)
    if reply.media_type == EVENT_STREAM:
        content = {EVENT_STREAM: {"schema": _frame(schema)}}
        return {
            "description": reply.when,
            "headers": _headers("Timeball-Applied-Index", *reply.headers),
            "content": content,
        }
    return {
        "description": reply.when,
        "headers": _headers("Timeball-Applied-Index", *reply.headers),
        "content": {media: {"schema": schema} for media in CONTENT_TYPES.values()},
    }


def _frame(schema: dict[str, Any]) -> dict[str, Any]:
    """One frame of a stream; without data it only tells how far everything has been told."""
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": schema}
    return {"type": "object", "properties": {"id": {"type": "string"}, "data": data}}


def _problems(
    refusals: Iterable[Refusal], schemas: _Schemas, responses: dict[str, Any]
) -> dict[str, Any]:
    """References by status; what several requests share is described once."""
    by_status: dict[int, list[str]] = {}
    for refusal in refusals:
        by_status.setdefault(refusal.status, []).append(refusal.kind.code)
    references: dict[str, Any] = {}
    for status, codes in by_status.items():
        name = f"{status}_{'_'.join(codes)}"
        responses[name] = _problem(status, codes, schemas)
        references[str(status)] = {"$ref": f"#/components/responses/{name}"}
    return references


def _problem(status: int, codes: Sequence[str], schemas: _Schemas) -> dict[str, Any]:
    retry = ("Retry-After",) if status in _WITH_RETRY else ()
    schema = {
        **schemas.of(Problem),
        "properties": {
            "type": {"enum": [PROBLEM_PREFIX + code for code in codes]},
            "status": {"const": status},
        },
    }
    return {
        "description": f"{HTTPStatus(status).phrase}: {', '.join(f'`{code}`' for code in codes)}.",
        "headers": _headers("Timeball-Applied-Index", *retry),
        "content": {media: {"schema": schema} for media in PROBLEM_TYPES.values()},
    }


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
