"""From a request to its response: route, negotiate, forward or handle, and render.

Handlers raise; this is the one place where an exception becomes a problem document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from timeball.client.errors import NotAcceptable, TimeballError, Unavailable
from timeball.cluster.dispatch.errors import NotServing
from timeball.cluster.http.codec import CONTENT_TYPES, answer_form, body_form, encode
from timeball.cluster.http.exchange import APPLIED_INDEX, HOPS, Form, Request, Response
from timeball.cluster.http.forward import Forwarder
from timeball.cluster.http.problems import RETRY_MS, as_timeball_error, problem_response
from timeball.cluster.http.routes import Route, Router
from timeball.cluster.raft.errors import NotLeader


class Application:
    """Answers requests; knows nothing of sockets."""

    def __init__(
        self,
        routes: Iterable[Route],
        *,
        serving: Callable[[], bool],
        applied_index: Callable[[], int],
        forwarder: Forwarder,
    ) -> None:
        """`serving` tells whether this node is the leader and has taken up its duties."""
        self._router = Router(routes)
        self._serving = serving
        self._applied_index = applied_index
        self._forwarder = forwarder
        self.answers: dict[tuple[str, str, int], int] = {}
        """How many answers were given, by method, route pattern and status."""

    async def handle(self, request: Request) -> Response:
        """Answer one request; raises nothing but cancellation."""
        pattern = ""
        try:
            route, request.parameters = self._router.find(request.method, request.path)
            pattern = route.pattern
            _negotiate(request, plain=route.plain)
            response = await self._answer(route, request)
        except Exception as error:  # noqa: BLE001 — the one place that renders them all
            response = self.refuse(request, error)
        self._count(request.method if pattern else "", pattern, response.status)
        return response

    def refuse(self, request: Request, error: Exception) -> Response:
        """The problem document for `error`, in the form that the client seems to accept."""
        public = as_timeball_error(error, leader_url=self._forwarder.leader_url() or "")
        response = problem_response(public, _accepted_form(request))
        response.headers.update(self._position())
        return response

    def _position(self) -> dict[str, str]:
        """How far the state is that this node answers from: also what it does not find may be
        known to others by now."""
        return {APPLIED_INDEX: str(self._applied_index())}

    async def _answer(self, route: Route, request: Request) -> Response:
        if route.leader and not self._serving():
            return await self._forward(route, request)
        try:
            answer = await route.handler(request)
        except (NotLeader, NotServing):
            # Certainly nothing was done here: the new leader may be known already.
            return await self._forward(route, request)
        if isinstance(answer, Response):
            return answer
        form = request.answer_form
        return Response(
            status=answer.status,
            body=encode(answer.message, form),
            content_type=CONTENT_TYPES[form],
            headers={**answer.headers, **self._position()},
            undelivered=answer.undelivered,
        )

    async def _forward(self, route: Route, request: Request) -> Response:
        if HOPS.lower() in request.headers:
            raise Unavailable(
                "this node does not lead (any more)",
                retry_after_ms=RETRY_MS,
                leader=self._forwarder.leader_url() or "",
            )
        return await self._forwarder.forward(request, write=route.write)

    def _count(self, method: str, pattern: str, status: int) -> None:
        key = (method, pattern, status)
        self.answers[key] = self.answers.get(key, 0) + 1


def _negotiate(request: Request, *, plain: bool) -> None:
    if plain:
        return
    request.answer_form = answer_form(request.headers.get("accept", ""), "json")
    if request.body:
        request.body_form = body_form(request.headers.get("content-type", ""))
        request.answer_form = answer_form(request.headers.get("accept", ""), request.body_form)


def _accepted_form(request: Request) -> Form:
    """Like negotiation, but never refuses: a problem is told in JSON if nothing else fits."""
    default: Form = "json"
    try:
        if request.headers.get("content-type"):
            default = body_form(request.headers["content-type"])
    except TimeballError:
        default = "json"
    try:
        return answer_form(request.headers.get("accept", ""), default)
    except NotAcceptable:
        return default
