"""A local cluster whose nodes reach one another, and whose clients reach them, over proxies.

Each node has a configuration of its own: its own addresses are true, and those of its peers
are the proxies' between the two, for Raft and for what it forwards over HTTP alike. Who looks
on (`LocalCluster.url`) asks the nodes directly, and sees what no client could.
"""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path

from timeball.bench.chaos.proxy import Links
from timeball.cluster.localcluster import LOOPBACK, LocalCluster, free_ports

CLIENTS = "clients"
"""The party that all clients and workers are."""


class ProxiedCluster(LocalCluster):
    """Nodes as processes, with `links` between them that can be broken."""

    def __init__(self, config: Path) -> None:
        super().__init__(config)
        self.links = Links(random.SystemRandom())
        nodes = self.settings.nodes
        taken = {address.port for node in nodes for address in (node.raft, node.http)}
        needed = len(nodes) + 2 * len(nodes) * (len(nodes) - 1)
        ports = (port for port in free_ports(needed + len(taken)) if port not in taken)
        self.client_urls = []
        for node in nodes:
            port = next(ports)
            self.links.add(CLIENTS, node.name, port, node.http.port)
            self.client_urls.append(f"http://{LOOPBACK}:{port}")
        text = config.read_text("utf-8")
        shown = {node.name: text for node in nodes}
        for one, other in itertools.permutations(nodes, 2):
            for address in (other.raft, other.http):
                port = next(ports)
                self.links.add(one.name, other.name, port, address.port)
                shown[one.name] = shown[one.name].replace(f'"{address}"', f'"{LOOPBACK}:{port}"')
        for name, own in shown.items():
            descriptor = os.open(self.config_of(name), os.O_WRONLY | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(own)

    def config_of(self, name: str) -> Path:
        """The node's own configuration."""
        return self.config.with_name(f"{self.config.stem}-{name}.toml")

    async def start(self) -> None:
        """Start the proxies, then the nodes; see `LocalCluster.start`."""
        await self.links.start()
        await super().start()

    async def close(self) -> None:
        """End every node, then the proxies."""
        try:
            await super().close()
        finally:
            await self.links.close()
