"""Every `*.txt` beside this file is a conversation with a cluster, replayed on real nodes.

    > METHOD path          a request, then its headers, then its body as JSON
    < status               what must come back, then headers, then JSON to match

In what must come back, an object may have further members, "*" matches anything, and
"$name" takes the value it meets first and must meet again later. In requests $name stands
for the value taken; $run is another word in each replay, and $form the form. A stream of
events is told as the list of them. `# …` are comments. Each conversation is held in both forms,
once with the leader and once with a follower.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
import pytest

from timeball.cluster.localcluster import LocalCluster

TRANSCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))
_runs = iter(range(10_000))


class Turn(NamedTuple):
    line: int
    method: str
    path: str
    headers: dict[str, str]
    body: str
    status: int
    expected_headers: dict[str, str]
    expected: str


def read(path: Path) -> list[Turn]:
    blocks: list[tuple[str, int, list[str]]] = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        mark, text = line[0], line[1:].strip()
        assert mark in "><", f"{path.name}:{number}: a line begins with > or < or #"
        if not blocks or blocks[-1][0] != mark or re.match(r"(GET|POST|PUT|PATCH|DELETE) /", text):
            blocks.append((mark, number, []))
        blocks[-1][2].append(text)
    turns = []
    for (_, line, sent), (_, _, answered) in zip(blocks[::2], blocks[1::2], strict=True):
        method, path_text = sent[0].split(" ", 1)
        headers, body = _parts(sent[1:])
        expected_headers, expected = _parts(answered[1:])
        turns.append(
            Turn(
                line,
                method,
                path_text,
                headers,
                body,
                int(answered[0]),
                expected_headers,
                expected,
            )
        )
    return turns


def _parts(lines: list[str]) -> tuple[dict[str, str], str]:
    headers = {}
    rest = list(lines)
    while rest and re.match(r"[A-Za-z-]+: ", rest[0]):
        name, value = rest.pop(0).split(": ", 1)
        headers[name] = value
    return headers, "\n".join(rest)


def fill(text: str, known: dict[str, Any]) -> str:
    return re.sub(r"\$([a-z_]+)", lambda found: str(known[found[1]]), text)


def match(expected: Any, actual: Any, known: dict[str, Any], where: str = "") -> list[str]:
    """What differs, as lines; takes values for names not known yet."""
    if expected == "*":
        return []
    if isinstance(expected, str) and re.fullmatch(r"\$[a-z_]+", expected):
        name = expected[1:]
        known.setdefault(name, actual)
        return [] if known[name] == actual else [f"{where}: {actual!r} is not ${name}"]
    if isinstance(expected, str) and "$" in expected:
        expected = fill(expected, known)
    if isinstance(expected, dict) and isinstance(actual, dict):
        found = [f"{where}.{key}: missing" for key in expected if key not in actual]
        for key in expected.keys() & actual.keys():
            found += match(expected[key], actual[key], known, f"{where}.{key}")
        return found
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        found = []
        for place, (wanted, given) in enumerate(zip(expected, actual, strict=True)):
            found += match(wanted, given, known, f"{where}[{place}]")
        return found
    same = expected == actual and type(expected) is type(actual)
    return [] if same else [f"{where}: expected {expected!r}, got {actual!r}"]


class Conversation:
    def __init__(self, session: aiohttp.ClientSession, url: str, form: str) -> None:
        self.session = session
        self.url = url
        self.form = form
        self.known: dict[str, Any] = {"run": f"r{next(_runs)}", "form": form}

    async def hold(self, turn: Turn) -> list[str]:
        headers = {"Accept": f"application/{self.form}"}
        body = None
        if turn.body:
            value = msgspec.json.decode(fill(turn.body, self.known))
            packed = self.form == "msgpack"
            body = msgspec.msgpack.encode(value) if packed else msgspec.json.encode(value)
            headers["Content-Type"] = f"application/{self.form}"
        headers.update({name: fill(value, self.known) for name, value in turn.headers.items()})
        url = self.url + fill(turn.path, self.known)
        async with self.session.request(turn.method, url, data=body, headers=headers) as answer:
            raw = await answer.read()
        found = [] if answer.status == turn.status else [f"status {answer.status}: {raw!r}"]
        if turn.expected:
            wanted = msgspec.json.decode(turn.expected)
            found += match(wanted, self._decode(answer.content_type, raw), self.known, "")
        for name, value in turn.expected_headers.items():
            found += match(value, answer.headers.get(name), self.known, name)
        return found

    def _decode(self, content_type: str, raw: bytes) -> Any:
        if content_type == "text/event-stream":
            found = re.findall(rb"^data: (.*)$", raw, re.MULTILINE)
            return [msgspec.json.decode(data) for data in found]
        assert content_type in (
            f"application/{self.form}",
            f"application/problem+{self.form}",
        ), f"{content_type}: {raw!r}"
        return msgspec.msgpack.decode(raw) if self.form == "msgpack" else msgspec.json.decode(raw)


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("asked", ["leader", "follower"])
@pytest.mark.parametrize("form", ["json", "msgpack"])
@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
async def test_transcript(shared_cluster: LocalCluster, path: Path, form: str, asked: str) -> None:
    leader = await shared_cluster.leader()
    follower = next(name for name in shared_cluster.names if name != leader)
    url = shared_cluster.url(leader if asked == "leader" else follower)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
        conversation = Conversation(session, url, form)
        for turn in read(path):
            fresh = "min_index=" in turn.path or "consistency=" in turn.path
            if turn.method == "GET" and asked == "follower" and not fresh:
                # It answers from what it has applied: let it apply what was written.
                await shared_cluster.caught_up([follower])
            differences = await conversation.hold(turn)
            assert not differences, f"{path.name}:{turn.line}: " + "; ".join(differences)


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 6
