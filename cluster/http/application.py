"""From a request to its response: route, negotiate, forward or handle, and render.

Handlers raise; this is the one place where an exception becomes a problem document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from timeball.client.errors import NotAcceptable, TimeballError, Unavailable
from timeball.cluster.dispatch.errors import NotServing
from timeball.cluster.http.codec import CONTENT_TYPES, answer_form, body_form, encode, negotiate
from timeball.cluster.http.exchange import APPLIED_INDEX, HOPS, Answered, Form, Request, Response
from timeball.cluster.http.forward import Forwarder
from timeball.cluster.http.problems import ELECTION_MS, as_timeball_error, problem_response
from timeball.cluster.http.routes import Route, Router
from timeball.cluster.raft.errors import DiskFull, NotLeader


class Application:
    """Answers requests; knows nothing of sockets."""

    def __init__(
        self,
        routes: Iterable[Route],
        *,
        serving: Callable[[], bool],
        has_room: Callable[[], bool],
        applied_index: Callable[[], int],
        forwarder: Forwarder,
    ) -> None:
        """`serving` tells whether this node is the leader and has taken up its duties; `has_room`
        whether its disk has room to lead on."""
        self._router = Router(routes)
        self._serving = serving
        self._has_room = has_room
        self._applied_index = applied_index
        self._forwarder = forwarder
        self.answers: dict[tuple[str, str, int], int] = {}
        """How many answers were given, by method, route pattern and status."""

    async def handle(self, request: Request) -> Response:
        """Answer one request; raises nothing but cancellation."""
        method, pattern = "", ""
        try:
            route, request.parameters = self._router.find(request.method, request.path)
            method, pattern = route.method, route.pattern
            if not route.plain:
                _negotiate(request)
            if route.leader and not self._serving():
                answer: Answered | Response = await self._forward(route, request)
            else:
                try:
                    answer = await route.handler(request)
                except (NotLeader, NotServing):
                    # Certainly nothing was done here: the new leader may be known already.
                    answer = await self._forward(route, request)
            response = answer if isinstance(answer, Response) else self._render(request, answer)
        except Exception as error:  # noqa: BLE001 — the one place that renders them all
            response = self.refuse(request, error)
        counted = (method, pattern, response.status)
        self.answers[counted] = self.answers.get(counted, 0) + 1
        return response

    def refuse(self, request: Request, error: Exception) -> Response:
        """The problem document for `error`, in the form that the client seems to accept."""
        public = as_timeball_error(error, leader_url=self._forwarder.leader_url() or "")
        response = problem_response(public, _accepted_form(request))
        self._tell_position(response.headers)
        return response

    def _tell_position(self, headers: dict[str, str]) -> None:
        """How far the state is that this node answers from: also what it does not find may be
        known to others by now."""
        headers[APPLIED_INDEX] = str(self._applied_index())

    def _render(self, request: Request, answer: Answered) -> Response:
        form = request.answer_form
        headers = answer.headers
        self._tell_position(headers)
        body = encode(answer.message, form)
        return Response(answer.status, body, CONTENT_TYPES[form], headers, answer.undelivered)

    async def _forward(self, route: Route, request: Request) -> Response:
        if HOPS.lower() in request.headers:
            raise Unavailable(
                "this node does not lead (any more)",
                retry_after_ms=ELECTION_MS,
                leader=self._forwarder.leader_url() or "",
            )
        if route.write and self._forwarder.leader_url() is None and not self._has_room():
            raise DiskFull("the disk has too little room, and no other node leads")
        return await self._forwarder.forward(request, write=route.write)


def _negotiate(request: Request) -> None:
    headers = request.headers
    request.body_form, request.answer_form = negotiate(
        headers.get("accept", ""), headers.get("content-type", "") if request.body else None
    )


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
