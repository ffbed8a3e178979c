"""The recording client: what it writes down is what happened on the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from timeball.bench.history import Delivered, HistoryReader, Recorder
from timeball.bench.recording import RecordingClient
from timeball.client import Client, messages
from timeball.client.errors import OutcomeUnknown

DELIVERY = messages.Delivery("1-0", "1", "q", 4096, 1, 3, 0, 0, 10_000, 0, "1-0", None)


async def test_what_a_repeated_claim_brings_may_be_of_its_first_sending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Any] = [
        OutcomeUnknown("no answer came"),
        messages.Claimed("again", [DELIVERY]),
        messages.Claimed("again", [DELIVERY]),
        messages.Claimed("other", [DELIVERY]),
    ]

    async def claim(_client: Client, **_asked: object) -> messages.Claimed:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, messages.Claimed)
        return answer

    monkeypatch.setattr(Client, "claim", claim)
    now = iter(range(100, 1_000, 100))
    path = tmp_path / "history"
    with Recorder(path, "worker", clock_us=lambda: next(now)) as recorder:
        async with RecordingClient(["http://127.0.0.1:1"], recorder) as client:
            with pytest.raises(OutcomeUnknown):
                await client.claim(worker="w", request_id="again")
            for request_id in ("again", "again", None):
                await client.claim(worker="w", request_id=request_id)
    delivered = [event for event in HistoryReader(path).read() if isinstance(event, Delivered)]
    assert [(one.claim_sent_us, one.at_us) for one in delivered] == [
        (100, 300),
        (400, 500),
        (600, 700),
    ]
