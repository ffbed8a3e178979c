"""The table of routes: method and path pattern to handler.

A pattern is a path whose segments in braces match any one segment. Literal paths win
over patterns, so ``/v1/jobs/batch`` never reads as the job named batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote

import msgspec

from timeball.client.errors import InvalidRequest, MethodNotAllowed, NotFound
from timeball.cluster.http.exchange import Handler

MAX_PATH = 2_000


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One route.

    `leader` routes are answered by the leader alone; other nodes forward. A `plain` route
    answers as text whatever the client accepts.
    """

    method: str
    pattern: str
    handler: Handler
    leader: bool = False
    plain: bool = False
    write: bool = False
    """Whether an answer that is lost on its way leaves the outcome unknown."""


class Router:
    """Finds the route of a request."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._literal: dict[str, dict[str, Route]] = {}
        self._patterns: dict[int, list[tuple[tuple[str, ...], dict[str, Route]]]] = {}
        for route in routes:
            methods = self._methods_at(route.pattern)
            assert route.method not in methods, "two routes with one method and pattern"
            methods[route.method] = route

    def _methods_at(self, pattern: str) -> dict[str, Route]:
        if "{" not in pattern:
            return self._literal.setdefault(pattern, {})
        segments = tuple(pattern.split("/"))
        siblings = self._patterns.setdefault(len(segments), [])
        for known, methods in siblings:
            if known == segments:
                return methods
        siblings.append((segments, {}))
        return siblings[-1][1]

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """The route and the named parts of the path; raises NotFound or MethodNotAllowed."""
        allowed: set[str] = set()
        literal = self._literal.get(path)
        if literal is not None:
            if method in literal:
                return literal[method], {}
            allowed.update(literal)
        elif len(path) > MAX_PATH:
            raise NotFound("the path is too long for any route")
        given = path.split("/")
        for segments, methods in self._patterns.get(len(given), ()):
            parameters = _match(segments, given)
            if parameters is None:
                continue
            if method in methods:
                return methods[method], parameters
            allowed.update(methods)
        if allowed:
            raise MethodNotAllowed(", ".join(sorted(allowed)))
        raise NotFound(f"no route {path[:200]}")


def _match(segments: tuple[str, ...], given: list[str]) -> dict[str, str] | None:
    parameters: dict[str, str] = {}
    for segment, part in zip(segments, given, strict=True):
        if segment.startswith("{"):
            if not part:
                return None
            name = segment[1:-1]
            try:
                parameters[name] = unquote(part, errors="strict")
            except UnicodeDecodeError as error:
                raise InvalidRequest.at(name, "the path is not valid UTF-8") from error
        elif segment != part:
            return None
    return parameters
