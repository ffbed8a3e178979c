"""A tiny `timeball bench hangups`: what must hold in the end holds; no speed is asserted."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

TIMEBALL = str(Path(sys.executable).parent / "timeball")


async def test_http_01_pollers_that_hang_up_each_second_leave_nothing_behind() -> None:
    process = await asyncio.create_subprocess_exec(
        *(TIMEBALL, "bench", "hangups", "--pollers", "60", "--seconds", "3", "--jobs", "60"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert output, errors.decode()
    report = json.loads(output)
    assert process.returncode == (1 if report["violations"] else 0)
    assert sum(report["hung_up"].values()) == report["pollers"] * report["waves"] == 180
    assert report["given_back"] > 0
    assert report["completed"] == report["created"] > 0
    never = ("attempts_burnt", "expired", "waiting_claims", "leased", "refused")
    assert {name: report[name] for name in never} == dict.fromkeys(never, 0)
    assert sorted(report["rss_mb"]) == ["a", "b", "c"]
