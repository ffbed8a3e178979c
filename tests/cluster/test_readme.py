"""The example of the README runs as it is written, against a real cluster."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from timeball.cluster.localcluster import LocalCluster

README = Path(__file__).resolve().parents[2] / "README.md"
ELSEWHERE = """
import pathlib, sys
from timeball.client import client
client.Client.__init__.__defaults__ = (sys.argv[2],)  # where `timeball dev` would be
example = pathlib.Path(sys.argv[1]).read_text("utf-8")
exec(compile(example, "README.md", "exec"), {"__name__": "__main__"})
"""


async def test_the_example_runs_as_written(tmp_path: Path) -> None:
    [example] = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert len([line for line in example.splitlines() if line.strip()]) <= 15
    (tmp_path / "example.py").write_text(example, "utf-8")
    async with LocalCluster.in_folder(tmp_path / "cluster") as cluster:
        await cluster.leader()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", "-c", ELSEWHERE,
            tmp_path / "example.py", ",".join(cluster.urls),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(60):
            said, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()
    assert b"Traceback" not in complaints, complaints.decode()
    assert said.decode() == "succeeded sent to ann\n"
