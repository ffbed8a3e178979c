"""The commands `timeball server` (one node), `timeball dev` (three on this machine) and `recover`.

Exit codes, the same for all: 0 ended as asked; 2 the configuration is wrong or a port is
in use; 3 a file of the node cannot be read or trusted; 4 the node stopped itself because
going on could break a promise. One line on standard error says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
import sys
import time
from pathlib import Path

import click
import uvloop

from timeball.cluster.localcluster import LocalCluster, NodeFailed, write_config
from timeball.cluster.node import EXIT_CONFIG, EXIT_DAMAGED, EXIT_HALTED, Node
from timeball.cluster.raft.disk import RealDisk
from timeball.cluster.raft.errors import Damaged, DiskFull, Halted, Misconfigured
from timeball.cluster.raft.metadata import MAX_INCARNATION, cluster_id
from timeball.cluster.raft.recovery import found_anew
from timeball.cluster.raft.settings import RaftSettings
from timeball.cluster.settings import ConfigError, Settings, load_settings
from timeball.cluster.state.machine import StateMachine

_log = logging.getLogger("timeball")

NODES = ("a", "b", "c")
HTTP_PORT = 7001
RAFT_PORT_OFFSET = 100


class CommandFailed(click.ClickException):
    """Ends a command with one line."""


class WrongConfiguration(CommandFailed):
    """The configuration is wrong, or a port is in use."""

    exit_code = EXIT_CONFIG


class UnusableFiles(CommandFailed):
    """A file of the node cannot be read or trusted."""

    exit_code = EXIT_DAMAGED


class Stopped(CommandFailed):
    """The node has stopped itself."""

    exit_code = EXIT_HALTED


_FAILURES: dict[int | None, type[CommandFailed]] = {
    EXIT_CONFIG: WrongConfiguration,
    EXIT_DAMAGED: UnusableFiles,
    EXIT_HALTED: Stopped,
}


@click.command()
@click.option(
    "--config",
    required=True,
    type=click.Path(path_type=Path),
    help="The cluster's configuration (see configs/three-nodes.toml).",
)
@click.option("--node", "name", required=True, help="Which of its nodes to run.")
def server(config: Path, name: str) -> None:
    """Run one node of a cluster."""
    try:
        settings = load_settings(config)
        settings.node(name)
    except ConfigError as error:
        raise WrongConfiguration(str(error)) from error
    _log_to_stderr(settings, name)
    sys.exit(uvloop.run(_serve(settings, name)))


async def _serve(settings: Settings, name: str) -> int:
    node = Node(
        settings,
        name,
        wall_clock_ms=lambda: time.time_ns() // 1_000_000,
        clock=time.monotonic,
        rng=random.SystemRandom(),
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.request_stop)
    try:
        await node.start()
    except (Damaged, DiskFull, Misconfigured) as error:
        raise UnusableFiles(str(error)) from error
    except Halted as error:
        raise Stopped(str(error)) from error
    except ConfigError as error:
        raise WrongConfiguration(str(error)) from error
    except OSError as error:
        place = error.filename or settings.data_dir(name)
        raise UnusableFiles(f"{place}: {error.strerror or error}") from error
    return await node.run()


def _log_to_stderr(settings: Settings, name: str) -> None:
    logging.basicConfig(
        level=settings.process.log_level.upper(),
        format=f"%(asctime)s {name} %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("timeball-data"),
    show_default=True,
    help="Folder of the configuration, the logs and the nodes' data.",
)
@click.option(
    "--base-port",
    type=click.IntRange(1, 65535 - RAFT_PORT_OFFSET - len(NODES)),
    default=HTTP_PORT,
    show_default=True,
    help=f"First of three HTTP ports; the nodes' own are {RAFT_PORT_OFFSET} higher.",
)
def dev(data: Path, base_port: int) -> None:
    """Run a cluster of three nodes on this machine, until Ctrl-C."""
    http_ports = [base_port + place for place in range(len(NODES))]
    raft_ports = [port + RAFT_PORT_OFFSET for port in http_ports]
    config = data / "timeball.toml"
    try:
        if not config.exists():
            write_config(config, http_ports=http_ports, raft_ports=raft_ports, names=NODES)
        cluster = LocalCluster(config)
    except OSError as error:
        raise WrongConfiguration(f"{error.filename}: {error.strerror}") from error
    except ConfigError as error:
        raise WrongConfiguration(str(error)) from error
    if [node.http.port for node in cluster.settings.nodes] != http_ports:
        detail = f"{config} was made with other ports; give its --base-port, or another --data"
        raise WrongConfiguration(detail)
    asyncio.run(_develop(cluster))


async def _develop(cluster: LocalCluster) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    # The nodes run in sessions of their own: a terminal that closes hangs up on us alone.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stopping.set)
    stopped = asyncio.ensure_future(stopping.wait())
    running = asyncio.ensure_future(_run_all(cluster))
    try:
        await asyncio.wait((stopped, running), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
        click.echo("stopping")
    except ConfigError as error:
        raise WrongConfiguration(str(error)) from error
    except NodeFailed as error:
        line = error.log.splitlines()[-1] if error.log else "its log is empty"
        detail = f"node {error.name} ended: {line.removeprefix('Error: ')}"
        raise _FAILURES.get(error.code, CommandFailed)(detail) from error
    except TimeoutError as error:
        raise CommandFailed(f"no leader came up; see {cluster.config.parent}/*.log") from error
    finally:
        running.cancel()
        stopped.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConfigError, NodeFailed, TimeoutError):
            await running
        await cluster.close()


async def _run_all(cluster: LocalCluster) -> None:
    await cluster.start()
    click.echo(f"a cluster of {len(cluster.names)} nodes, data under {cluster.config.parent}")
    for name in cluster.names:
        click.echo(f"  {name}  {cluster.url(name)}")
    click.echo(f"leader: {await cluster.leader()}. Ctrl-C ends it.")
    codes = await asyncio.gather(*(cluster.wait(name) for name in cluster.names))
    raise NodeFailed(cluster.names[0], codes[0], cluster.log_end(cluster.names[0]))


@click.command()
@click.option(
    "--config",
    required=True,
    type=click.Path(path_type=Path),
    help="The cluster's configuration.",
)
@click.option("--survivor", required=True, help="The node whose disk is left, in its data folder.")
@click.option("--force-new-cluster", is_flag=True, help="Yes, lose what that disk does not hold.")
def recover(config: Path, survivor: str, force_new_cluster: bool) -> None:
    """Found a cluster anew from ONE disk, when a majority of its disks is lost for good.

    All nodes must be down, and the data folders of the others empty: each is filled with a copy
    of the survivor's, to be moved to its machine. LOSES all that the survivor had not received,
    though it was acknowledged. The lost disks must never come back.
    """
    try:
        settings = load_settings(config)
        settings.node(survivor)
    except ConfigError as error:
        raise WrongConfiguration(str(error)) from error
    names = [node.name for node in settings.nodes]
    if not force_new_cluster:
        raise WrongConfiguration(
            f"nothing was done. What the disk of {survivor} does not hold would be lost for good, "
            "also what was acknowledged: if no majority of the disks can be brought back, say "
            "--force-new-cluster"
        )
    rng = random.SystemRandom()
    try:
        last = found_anew(
            RealDisk(),
            survivor,
            {name: settings.data_dir(name) for name in names},
            cluster_id(settings.name, names),
            StateMachine(),
            RaftSettings(cluster=settings.name),
            lambda: rng.randrange(1, MAX_INCARNATION),
        )
    except (Damaged, Misconfigured) as error:
        raise UnusableFiles(str(error)) from error
    except Halted as error:
        raise Stopped(str(error)) from error
    except OSError as error:
        place = error.filename or settings.data_dir(survivor)
        raise UnusableFiles(f"{place}: {error.strerror or error}") from error
    click.echo(f"the cluster is founded anew from {survivor}, up to position {last}. The folders:")
    for name in names:
        click.echo(f"  {name}  {settings.data_dir(name)}")
    click.echo("Move each to its machine, then start all nodes.")


@click.group()
def main() -> None:
    """The commands of a node, without those of a client."""


main.add_command(server)
main.add_command(dev)
main.add_command(recover)

if __name__ == "__main__":
    main()
