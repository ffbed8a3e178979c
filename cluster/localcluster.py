"""A cluster of real processes on this machine: configured, started, signalled and ended.

`timeball dev`, the demonstration and the tests all run their nodes through this. Every
node runs in a session of its own, so that a Ctrl-C at the terminal reaches the harness
alone, which ends the nodes in order; what a node logs goes to `<name>.log` beside its data.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import aiohttp
import msgspec

from timeball.client.messages import ClusterView
from timeball.cluster.settings import ConfigError, Settings, load_settings

LOOPBACK = "127.0.0.1"
START_S = 20.0
"""How long a cluster may take from its start to a serving leader."""
STOP_S = 10.0
"""How long a node may take to end by itself before it is killed."""
POLL_S = 0.02
PORTS = range(12_000, 32_000)

_views = msgspec.json.Decoder(ClusterView)


class NodeFailed(Exception):
    """A node ended when it should run: its exit code and the end of its log."""

    def __init__(self, name: str, code: int | None, log: str) -> None:
        super().__init__(f"node {name} ended with code {code}: {log}")
        self.name = name
        self.code = code
        self.log = log


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens on at the moment, each another.

    They lie below the range from which outgoing connections take theirs: a node that is
    dialled before it listens, or restarted, would lose such a port to any of them.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((LOOPBACK, port))
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"fewer than {count} ports are free")


def write_config(
    path: Path,
    *,
    http_ports: Sequence[int],
    raft_ports: Sequence[int],
    names: Sequence[str] = ("a", "b", "c"),
    cluster: str = "dev",
    queues: Sequence[str] | None = None,
    limits: Mapping[str, int] | None = None,
    process: Mapping[str, str | int] | None = None,
) -> None:
    """Write a configuration for nodes on the loopback, with a random secret of its own."""
    lines = [f'name = "{cluster}"', f'secret = "{secrets.token_urlsafe(32)}"']
    if queues is not None:
        lines.append(f"queues = {_toml(list(queues))}")
    for name, raft, http in zip(names, raft_ports, http_ports, strict=True):
        lines += ["", "[[nodes]]", f'name = "{name}"']
        lines += [f'raft = "{LOOPBACK}:{raft}"', f'http = "{LOOPBACK}:{http}"']
    for table, values in (
        ("limits", limits),
        ("process", {"data_dir": "{node}", **(process or {})}),
    ):
        if values:
            lines += ["", f"[{table}]"]
            lines += [f"{key} = {_toml(value)}" for key, value in values.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def _toml(value: Any) -> str:
    """Strings, integers and lists of them: TOML and JSON write these alike."""
    return msgspec.json.encode(value).decode()


class LocalCluster:
    """Nodes as processes, by name."""

    def __init__(self, config: Path) -> None:
        """The cluster of a configuration file, whose nodes are all on this machine."""
        self.config = config
        self.settings: Settings = load_settings(config)
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def in_folder(cls, folder: Path, **options: Any) -> Self:
        """Three nodes on free ports with everything under `folder`; see `write_config`."""
        names = options.get("names", ("a", "b", "c"))
        ports = free_ports(2 * len(names))
        config = folder / "timeball.toml"
        write_config(
            config, http_ports=ports[: len(names)], raft_ports=ports[len(names) :], **options
        )
        return cls(config)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def names(self) -> list[str]:
        """The nodes of the configuration."""
        return [node.name for node in self.settings.nodes]

    @property
    def urls(self) -> list[str]:
        """The HTTP interfaces of all nodes, running or not."""
        return [node.http_url for node in self.settings.nodes]

    def url(self, name: str) -> str:
        """The HTTP interface of one node."""
        return self.settings.node(name).http_url

    def config_of(self, name: str) -> Path:  # noqa: ARG002 — for those whose nodes differ
        """The configuration that a node is started with: one and the same for all."""
        return self.config

    def log_path(self, name: str) -> Path:
        """Where a node's log goes."""
        return self.config.parent / f"{name}.log"

    def pid(self, name: str) -> int:
        """The process of a node that was started."""
        return self._processes[name].pid

    def running(self, name: str) -> bool:
        """Whether the node's process exists, stopped or not."""
        process = self._processes.get(name)
        return process is not None and process.returncode is None

    # --- starting and ending -----------------------------------------------------------------

    async def start(self) -> None:
        """Start every node and wait until the cluster serves on all.

        Raises ConfigError when a port is in use (another cluster there would answer in place
        of this one), NodeFailed when a node ends, and TimeoutError when no leader comes up.
        """
        self._check_ports()
        try:
            for name in self.names:
                await self.start_node(name)
            await self.wait_ready()
        except BaseException:
            await self.close()
            raise

    def _check_ports(self) -> None:
        for node in self.settings.nodes:
            for kind, address in (("http", node.http), ("raft", node.raft)):
                try:
                    socket.create_server((address.host, address.port)).close()
                except OSError as error:
                    raise ConfigError(
                        self.config, f"node {node.name}, {kind}", f"{address} is already in use"
                    ) from error

    async def start_node(self, name: str) -> None:
        """Start one node; it is not waited for."""
        assert not self.running(name), f"node {name} runs already"
        with self.log_path(name).open("ab") as log:
            self._processes[name] = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "timeball.cluster.commands", "server"),
                *("--config", str(self.config_of(name)), "--node", name),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a running node a signal."""
        os.kill(self._processes[name].pid, number)

    async def kill(self, name: str) -> None:
        """End a node by SIGKILL."""
        self.signal(name, signal.SIGKILL)
        await self.wait(name)

    async def restart(self, name: str) -> None:
        """Start a node that has ended, and wait until it is ready."""
        await self.start_node(name)
        await self.wait_ready([name])

    async def wait(self, name: str) -> int:
        """Wait for the end of a node; its exit code (negative: the signal that ended it)."""
        return await self._processes[name].wait()

    async def stop_node(self, name: str) -> int:
        """Ask a node to end, and kill it if it does not; its exit code."""
        process = self._processes[name]
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            process.send_signal(signal.SIGCONT)
            process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                return await process.wait()
        except TimeoutError:
            process.kill()
            return await process.wait()
        except BaseException:
            if process.returncode is None:
                process.kill()
            raise

    async def close(self) -> None:
        """End every node and release everything."""
        try:
            await asyncio.gather(
                *(self.stop_node(name) for name in self.names if self.running(name))
            )
        finally:
            if self._session is not None:
                await self._session.close()
                self._session = None

    # --- looking -----------------------------------------------------------------------------

    async def view(self, name: str, *, digest: bool = False) -> ClusterView | None:
        """The cluster as a node sees it; None if it does not answer."""
        body = await self._get(f"{self.url(name)}/v1/cluster" + ("?digest=true" if digest else ""))
        return None if body is None else _views.decode(body)

    async def is_ready(self, name: str) -> bool:
        """Whether a node says that it is ready."""
        return await self._get(f"{self.url(name)}/readyz") is not None

    async def leader(self, timeout_s: float = START_S) -> str:
        """Wait for a leader that serves and name it; raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while True:
                views = await asyncio.gather(*(self.view(name) for name in self.names))
                serving = [view for view in views if view is not None and view.serving]
                if serving:
                    return max(serving, key=lambda view: view.term).node
                await asyncio.sleep(POLL_S)

    async def wait_ready(
        self, names: Sequence[str] | None = None, timeout_s: float = START_S
    ) -> None:
        """Wait until the nodes are ready and one serves; NodeFailed when one has ended."""
        names = self.names if names is None else names
        async with asyncio.timeout(timeout_s):
            for name in names:
                while not await self.is_ready(name):
                    if not self.running(name):
                        raise NodeFailed(name, self._processes[name].returncode, self.log_end(name))
                    await asyncio.sleep(POLL_S)
            await self.leader(timeout_s)

    async def caught_up(
        self, names: Sequence[str] | None = None, timeout_s: float = START_S
    ) -> None:
        """Wait until nodes have applied all that anybody was answered; raises TimeoutError.

        A node that is ready may still be a little behind.
        """
        async with asyncio.timeout(timeout_s):
            for name in self.names if names is None else names:
                strong = f"{self.url(name)}/v1/cluster?consistency=strong"
                while await self._get(strong) is None:  # noqa: ASYNC110 — another process
                    await asyncio.sleep(POLL_S)

    def log_end(self, name: str, characters: int = 1_000) -> str:
        """The last lines of a node's log."""
        path = self.log_path(name)
        text = path.read_text("utf-8", "replace") if path.exists() else ""
        return text[-characters:].strip()

    async def _get(self, url: str) -> bytes | None:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2.0))
        try:
            async with self._session.get(url) as answer:
                body = await answer.read()
                return body if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError):
            return None
