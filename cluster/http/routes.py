"""The table of routes: method and path pattern to handler.

A pattern is a path whose segments in braces match any one segment. Literal paths win
over patterns, whatever the method, so ``/v1/jobs/batch`` never reads as the job named batch; and
among patterns
those that begin literally for longer, so ``/v1/jobs/by-name/explain`` is the job named explain.
Whatever is there to GET is there to HEAD too (RFC 9110, section 9.1).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
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

    def __init__(self, places: tuple[int, ...]) -> None:
        self.places = places
        self._patterns: dict[tuple[str, ...], tuple[tuple[str, ...], dict[str, Route]]] = {}

    def methods_at(self, segments: list[str]) -> dict[str, Route]:
        """The routes of a pattern, by method, to be added to."""
        names = tuple(segments[place][1:-1] for place in self.places)
        known, methods = self._patterns.setdefault(self._between(segments), (names, {}))
        assert known == names, "one parameter has two names"
        return methods

    def match(self, given: list[str]) -> tuple[dict[str, Route], dict[str, str]] | None:
        """The routes by method, and the parameters; raises InvalidRequest for one of no text."""
        found = self._patterns.get(self._between(given))
        if found is None:
            return None
        names, methods = found
        parameters: dict[str, str] = {}
        for name, place in zip(names, self.places, strict=True):
            part = given[place]
            if not part:
                return None
            parameters[name] = _decoded(name, part) if "%" in part else part
        return methods, parameters

    def _between(self, segments: list[str]) -> tuple[str, ...]:
        fixed = segments.copy()
        for place in self.places:
            fixed[place] = ""
        return tuple(fixed)


def _decoded(name: str, part: str) -> str:
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidRequest.at(name, "the path is not valid UTF-8") from error


class Router:
    """Finds the route of a request."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._literal: dict[str, dict[str, Route]] = {}
        self._shapes: dict[int, list[_Shape]] = {}
        for route in routes:
            methods = self._methods_at(route.pattern)
            assert route.method not in methods, "two routes with one method and pattern"
            methods[route.method] = route

    def _methods_at(self, pattern: str) -> dict[str, Route]:
        if "{" not in pattern:
            return self._literal.setdefault(pattern, {})
        segments = pattern.split("/")
        places = tuple(place for place, segment in enumerate(segments) if segment.startswith("{"))
        shapes = self._shapes.setdefault(len(segments), [])
        for shape in shapes:
            if shape.places == places:
                return shape.methods_at(segments)
        shape = _Shape(places)
        shapes.append(shape)
        shapes.sort(key=lambda shape: shape.places, reverse=True)
        return shape.methods_at(segments)

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """The route and the named parts of the path; raises NotFound or MethodNotAllowed."""
        asked = "GET" if method == "HEAD" else method
        literal = self._literal.get(path)
        if literal is not None:
            if asked in literal:
                return literal[asked], {}
            raise MethodNotAllowed.among(method, _with_head(literal))
        if len(path) > MAX_PATH:
            raise NotFound("the path is too long for any route")
        allowed: set[str] = set()
        given = path.split("/")
        for shape in self._shapes.get(len(given), ()):
            found = shape.match(given)
            if found is None:
                continue
            methods, parameters = found
            if asked in methods:
                return methods[asked], parameters
            allowed.update(methods)
        if allowed:
            raise MethodNotAllowed.among(method, _with_head(allowed))
        raise NotFound(f"no route {path[:200]}")


def _with_head(methods: Collection[str]) -> set[str]:
    return {*methods, "HEAD"} if "GET" in methods else set(methods)
