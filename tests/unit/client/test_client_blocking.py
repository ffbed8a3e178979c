"""The synchronous client: in step with the asynchronous one, and its transport on loopback."""

from __future__ import annotations

import inspect
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from timeball.client import Client, Hold, NotFound, OutcomeUnknown, SyncClient, Unavailable
from timeball.client.blocking import blocking, iterating

CREATED = {"status": "created", "job_id": "7", "execution_id": "7-1764480000000"}


def test_every_call_of_the_client_is_one_of_the_synchronous_client() -> None:
    public = {
        name: member
        for name, member in inspect.getmembers(Client)
        if not name.startswith("_")
        and (inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member))
    }
    assert len(public) > 25
    for name, member in public.items():
        mine = inspect.getattr_static(SyncClient, name, None)
        wanted = iterating if inspect.isasyncgenfunction(member) else blocking
        assert isinstance(mine, wanted), f"SyncClient.{name} is missing"
        assert mine.method is member, name
        assert mine.__doc__ == member.__doc__


def test_calls_pages_and_problems(kit) -> None:
    view = {
        "execution_id": "1-2", "job_id": "1", "queue": "q", "state": "dead", "reason": "",
        "origin": None, "nominal_at": "", "due_at": "", "due": True, "finished_at": None,
        "attempts_used": 1, "max_attempts": 1, "cancel_requested": False, "result": None,
        "attempts": [],
    }  # fmt: skip
    pages = [
        {"executions": [view] * 2, "cursor": "c", "applied_index": 5},
        {"executions": [view], "cursor": None, "applied_index": 6},
    ]
    with kit.serving() as peer, SyncClient(peer.url, read_your_writes=True) as client:
        peer.then("/v1/jobs", kit.Answer(201, CREATED, {"Timeball-Applied-Index": "4"}))
        peer.then("/v1/dead", *[kit.Answer(200, page) for page in pages])
        peer.then("/v1/jobs/9", kit.Answer(404, kit.problem("not-found", 404, detail="job 9")))
        assert client.create(queue="mail", payload=1).job_id == "7"
        assert client.seen_index == 4
        assert [each.execution_id for each in client.dead()] == ["1-2"] * 3
        with pytest.raises(NotFound, match="job 9"):
            client.job("9")
        [beat] = client.heartbeat([Hold("1-2", 5)])
        assert beat.verdict == "extended"
        assert client.claim(worker="w").executions == []
    assert peer.to("/v1/dead")[1].query == {"limit": "100", "cursor": "c", "min_index": "4"}
    assert len(peer.to("/v1/jobs")[0].headers["timeball-request-id"]) == 32


def test_a_lost_answer_is_repeated_elsewhere_under_one_request_id(kit) -> None:
    with kit.serving() as one, kit.serving() as two, SyncClient([one.url, two.url]) as client:
        one.then("/v1/jobs", None)
        two.then("/v1/jobs", kit.Answer(200, CREATED))
        assert client.create(payload=1).job_id == "7"
        ids = [peer.seen[0].headers["timeball-request-id"] for peer in (one, two)]
    assert ids[0] == ids[1]


def test_connections_are_kept_and_one_that_the_node_closed_is_not_used(kit) -> None:
    """Else a create would be told an unknown outcome because a node tidied up."""
    accepted = []

    def serve(listener: socket.socket) -> None:
        for requests in (2, 1):
            connection, _ = listener.accept()
            accepted.append(connection)
            for _ in range(requests):
                got = b""
                while b"\r\n\r\n" not in got:
                    got += connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n")
            connection.close()
            closed.set()

    def pause(seconds: float) -> None:
        raise AssertionError("a call was repeated")

    closed = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=serve, args=(listener,), daemon=True)
        serving.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with SyncClient(url, rng=Random(1), pause=pause) as client:
            for call in range(3):
                if call == 2:
                    assert closed.wait(10)
                with pytest.raises(Exception, match="404"):
                    client.job("1")
        serving.join()
    assert len(accepted) == 2


def test_a_node_that_drips_its_answer_is_left_when_the_attempts_time_is_over() -> None:
    """A timeout of each read alone would wait for ever."""
    stop = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            while not stop.wait(0.02):
                try:
                    connection.sendall(b"X-Drip: 1\r\n")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        dripping = threading.Thread(target=drip, args=(listener,), daemon=True)
        dripping.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        client = SyncClient(url, timeout_ms=400, attempt_timeout_ms=300)
        with client, pytest.raises(OutcomeUnknown, match="did not answer in time"):
            client.create()
        stop.set()
        dripping.join()


def test_pauses_and_deadlines_go_by_the_clock_that_is_handed_in(kit) -> None:
    now = [0]
    paused = []

    def pause(seconds: float) -> None:
        paused.append(seconds)
        now[0] += round(seconds * 1_000)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        options = {"rng": Random(1), "monotonic_ms": lambda: now[0], "pause": pause}
        client = SyncClient(url, timeout_ms=60_000, **options)
        with client, pytest.raises(Unavailable, match="could not be reached"):
            client.create()
    assert paused
    assert now[0] <= 60_000


def test_threads_share_a_client(kit) -> None:
    with kit.serving() as peer:

        async def created(seen):
            number = seen.body["payload"]
            headers = {"Timeball-Applied-Index": str(number)}
            return kit.Answer(201, {**CREATED, "job_id": str(number)}, headers)

        peer.usual["/v1/jobs"] = created
        with SyncClient(peer.url, connections=4) as client, ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda n: client.create(payload=n).job_id, range(1, 201)))
            assert client.seen_index == 200
        assert answers == [str(n) for n in range(1, 201)]


def test_a_closed_client_refuses(kit) -> None:
    client = SyncClient()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.cluster()
