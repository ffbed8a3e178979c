"""The guide to timetables says what is so: its examples are run, in their order, as they stand."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import sys
from pathlib import Path
from typing import Any

from timeball.client import Client
from timeball.cluster.localcluster import LocalCluster

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "timetables.md"
BIN = Path(sys.executable).parent
LIMIT_S = 120
TOOLS = {
    "curl": """
import argparse, urllib.request
parser = argparse.ArgumentParser()
parser.add_argument("-fsS", action="store_true", required=True)
parser.add_argument("-X")
parser.add_argument("-H", action="append", default=[])
parser.add_argument("-d")
parser.add_argument("url")
asked = parser.parse_args()
body = None if asked.d is None else asked.d.encode()
headers = dict(header.split(": ", 1) for header in asked.H)
request = urllib.request.Request(asked.url, body, headers, method=asked.X)
print(urllib.request.urlopen(request, timeout=30).read().decode())
""",
    "jq": """
import json, sys
assert sys.argv[1:] == ["-r", ".job_id"]
print(json.load(sys.stdin)["job_id"])
""",
}
"""As much of these programs as the guide uses: not every machine has them."""


async def run_python(source: str, names: dict[str, Any]) -> None:
    """Run a block with `client` and what earlier blocks named; it may await."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    result = eval(compile(source, str(GUIDE), "exec", flags=flags), names)
    if inspect.isawaitable(result):
        await result


def tools_in(folder: Path) -> Path:
    """Write the stand-ins, as programs."""
    folder.mkdir()
    for name, source in TOOLS.items():
        (folder / name).write_text(f"#!{sys.executable}\n{source.lstrip()}")
        (folder / name).chmod(0o755)
    return folder


async def run_shell(source: str, environment: dict[str, str]) -> str:
    """Run a block; any command that fails fails the test."""
    process = await asyncio.create_subprocess_exec(
        "bash", "-euo", "pipefail", "-c", source,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    told, complaint = await process.communicate()
    assert process.returncode == 0, f"{source}\n{told.decode()}\n{complaint.decode()}"
    return told.decode()


async def test_the_guide_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", GUIDE.read_text("utf-8"), re.M | re.S)
    assert {kind for kind, _ in blocks} == {"python", "sh", "text"}
    tools = tools_in(tmp_path / "tools")
    cluster = LocalCluster.in_folder(tmp_path)
    async with (
        asyncio.timeout(LIMIT_S),
        cluster,
        Client(cluster.urls, read_your_writes=True) as client,
    ):
        await cluster.leader()
        names: dict[str, Any] = {"client": client}
        environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(tools), str(BIN), os.environ["PATH"]]),
            "TIMEBALL_URLS": ",".join(cluster.urls),
            "NODE": cluster.urls[-1],
        }
        told = ""
        for kind, source in blocks:
            if kind == "python":
                await run_python(source, names)
            elif kind == "sh":
                told = await run_shell(source, environment)
            else:
                assert told == source, "the output of the block before"
