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


class _Shape:
    """The patterns whose parameters stand in the same places, by the segments in between."""

    def __init__(self, places: tuple[int, ...], length: int) -> None:
        self.places = places
        self.length = length
        self._methods: dict[tuple[str, ...], tuple[tuple[str, ...], dict[str, Route]]] = {}

    def methods_at(self, segments: list[str]) -> dict[str, Route]:
        """The routes of a pattern, by method, to be added to."""
        names = tuple(segments[place][1:-1] for place in self.places)
        known, methods = self._methods.setdefault(self._fixed(segments), (names, {}))
        assert known == names, "one place has two names"
        return methods

    def match(self, given: list[str]) -> tuple[tuple[str, ...], dict[str, Route]] | None:
        """The names of the parameters, and the routes by method."""
        return self._methods.get(self._fixed(given))

    def _fixed(self, segments: list[str]) -> tuple[str, ...]:
        fixed = segments.copy()
        for place in self.places:
            fixed[place] = ""
        return tuple(fixed)


class Router:
    """Finds the route of a request."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._literal: dict[str, dict[str, Route]] = {}
        self._shapes: list[_Shape] = []
        for route in routes:
            methods = self._methods_at(route.pattern)
            assert route.method not in methods, "two routes with one method and pattern"
            methods[route.method] = route

    def _methods_at(self, pattern: str) -> dict[str, Route]:
        if "{" not in pattern:
            return self._literal.setdefault(pattern, {})
        segments = pattern.split("/")
        places = tuple(place for place, segment in enumerate(segments) if segment.startswith("{"))
        for shape in self._shapes:
            if (shape.places, shape.length) == (places, len(segments)):
                return shape.methods_at(segments)
        self._shapes.append(_Shape(places, len(segments)))
        return self._shapes[-1].methods_at(segments)

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
        for shape in self._shapes:
            found = shape.match(given) if shape.length == len(given) else None
            if found is None:
                continue
            names, methods = found
            parts = [given[place] for place in shape.places]
            if not all(parts):
                continue
            if method in methods:
                return methods[method], dict(zip(names, map(_decoded, names, parts), strict=True))
            allowed.update(methods)
        if allowed:
            raise MethodNotAllowed(", ".join(sorted(allowed)))
        raise NotFound(f"no route {path[:200]}")


def _decoded(name: str, part: str) -> str:
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidRequest.at(name, "the path is not valid UTF-8") from error
