"""The configuration of a node: one TOML file, read into frozen settings and checked once.

Three kinds of settings live in it:

- **cluster-wide**: `name`, the secret, `queues`, `[limits]` and the `[[nodes]]` table. They
  must be the same on every node; the easiest way is one and the same file.
- **per process**: the `[process]` table, which may differ from machine to machine.
- nothing is reloaded while a node runs: change the file and restart one node after another.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from timeball.client.messages import QueueName
from timeball.cluster.state.operations import ClusterSettings
from timeball.cluster.validation import blame

MIN_SECRET_CHARACTERS = 16
MAX_SECRET_BYTES = 4096
CLUSTER_SIZES = (1, 3, 5)
PORTS = range(1, 65536)
_LABEL = r"[A-Za-z0-9_-]{1,63}"
_HOST = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9_.-]+)?")
"""A name or an IPv4 address, or an IPv6 address: what a resolver takes without choking."""

_PATH = r"\A[^\x00]+\Z"
Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")]
LogLevel = Literal["debug", "info", "warning", "error"]


class ConfigError(Exception):
    """The configuration is wrong: which file, which field, and what would be right."""

    def __init__(self, path: str | Path, field: str, detail: str) -> None:
        place = f"{field}: " if field else ""
        super().__init__(f"{path}: {place}{detail}")
        self.path = str(path)
        self.field = field
        self.detail = detail


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of the tables of the file."""


class Limits(_Table, frozen=True):
    """Cluster-wide bounds; the leader's become the cluster's when it takes office."""

    keep_finished: Annotated[int, Meta(ge=0, le=100_000_000)] = 10_000
    """Finished executions kept at most, succeeded and cancelled together…"""
    keep_finished_ms: Annotated[int, Meta(ge=0, le=366 * 86_400_000)] = 7 * 86_400_000
    """… and for how long at most…"""
    keep_finished_bytes: Annotated[int, Meta(ge=0, le=10**12)] = 268_435_456
    """… and so many bytes of payloads, results and errors at most."""
    keep_dead: Annotated[int, Meta(ge=0, le=100_000_000)] = 10_000
    keep_dead_bytes: Annotated[int, Meta(ge=0, le=10**12)] = 268_435_456
    idempotency_window_ms: Annotated[int, Meta(ge=1_000, le=366 * 86_400_000)] = 86_400_000
    """How long an idempotency key holds whose request does not say."""
    idempotency_max_window_ms: Annotated[int, Meta(ge=1_000, le=366 * 86_400_000)] = 30 * 86_400_000
    """The longest window that a request may ask for."""
    idempotency_keys: Annotated[int, Meta(ge=1, le=100_000_000)] = 1_000_000
    """Keys with a window that are known at most; beyond, those known longest are forgotten."""
    idempotency_keys_held: Annotated[int, Meta(ge=1, le=100_000_000)] = 1_000_000
    """Keys that hold until their job has ended; a create beyond is answered with 429."""
    claim_memory_ms: Annotated[int, Meta(ge=1_000, le=3_600_000)] = 60_000
    """How long the answer to a claim can be asked for again by its request id."""
    claim_memory: Annotated[int, Meta(ge=1, le=10_000_000)] = 100_000
    request_memory_ms: Annotated[int, Meta(ge=1_000, le=86_400_000)] = 600_000
    """How long a create can be repeated by its request id."""
    request_memory: Annotated[int, Meta(ge=1, le=10_000_000)] = 200_000
    max_pending: Annotated[int, Meta(ge=1, le=100_000_000)] = 2_000_000
    """Executions that wait; a create beyond is answered with 429."""
    catch_up_per_s: Annotated[int, Meta(ge=0, le=1_000_000)] = 200
    """Runs of the past that all timetables together make in a second, after a burst of as many as
    in ten; 0: no bound."""

    def for_state(self) -> ClusterSettings:
        """These limits in the form that the log carries."""
        return ClusterSettings(**{name: getattr(self, name) for name in self.__struct_fields__})


class Process(_Table, frozen=True):
    """What may differ from one machine to the next."""

    data_dir: Annotated[str, Meta(pattern=_PATH)] = "data/{node}"
    """Where the node keeps its log; `{node}` stands for its name. Relative to the file."""
    log_level: LogLevel = "info"
    commit_spacing_ms: Annotated[int, Meta(ge=0, le=1_000)] = 5
    """The least time between two entries of the log; two fifths of it after one that held next to
    nothing, or was full. An idle cluster writes at once."""
    commit_entry_items: Annotated[int, Meta(ge=250, le=4_096)] = 750
    """The most jobs, leases and ends of executions in one entry; down to 250 of them where it takes
    more than 3 ms to apply these."""
    min_free_mib: Annotated[int, Meta(ge=1, le=1_000_000)] = 256
    """With less room on the disk of `data_dir`, in MiB, the node neither leads nor takes writes."""
    connections_per_peer: Annotated[int, Meta(ge=1, le=10_000)] = 4_000
    """HTTP connections from one address (IPv6: one network of 64 bits); one more is answered with
    503. All clients behind one proxy share it."""
    event_streams: Annotated[int, Meta(ge=0, le=10_000)] = 64
    """Clients that the node tells events to at one time."""
    event_history: Annotated[int, Meta(ge=0, le=100_000_000)] = 100_000
    """Events kept in memory, for clients that come (again) with a position of the past…"""
    event_history_bytes: Annotated[int, Meta(ge=0, le=10**12)] = 67_108_864
    """… and so many bytes of them at most."""
    drain_ms: Annotated[int, Meta(ge=0, le=60_000)] = 3_000
    """How long a stopping node waits for the requests that it is answering."""


class _NodeForm(_Table, frozen=True):
    name: Name
    raft: str
    http: str


class _FileForm(_Table, frozen=True):
    name: Name
    nodes: list[_NodeForm]
    secret: str | None = None
    secret_file: Annotated[str, Meta(pattern=_PATH)] | None = None
    queues: list[QueueName] | None = None
    limits: Limits = Limits()
    process: Process = Process()


class Address(msgspec.Struct, frozen=True):
    """A host and a port."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class NodeSettings(msgspec.Struct, frozen=True):
    """One member: its name, and where its peers and its clients reach it."""

    name: str
    raft: Address
    http: Address

    @property
    def http_url(self) -> str:
        """The base of the node's HTTP interface."""
        return f"http://{self.http}"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The whole configuration, checked."""

    path: Path
    name: str
    secret: bytes
    nodes: tuple[NodeSettings, ...]
    queues: frozenset[str] | None
    """The only queues that this cluster serves; None: any."""
    limits: Limits
    process: Process

    def node(self, name: str) -> NodeSettings:
        """The member of that name; raises ConfigError when there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        known = ", ".join(node.name for node in self.nodes)
        raise ConfigError(self.path, "nodes", f"no node is named {name!r}; the nodes are {known}")

    def data_dir(self, node: str) -> Path:
        """The folder of that node's files."""
        return self.path.parent / self.process.data_dir.replace("{node}", node)


def load_settings(path: Path) -> Settings:
    """Read and check a configuration file; raises ConfigError."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(path, "", f"cannot be read: {_reason(error)}") from error
    return parse_settings(text, path)


def parse_settings(text: str, path: Path) -> Settings:
    """Check a configuration given as text; `path` is where it stands. Raises ConfigError."""
    try:
        form = msgspec.convert(tomllib.loads(text), _FileForm)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(path, "", f"is not valid TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise ConfigError(path, *blame(error)) from error
    settings = Settings(
        path=path.absolute(),
        name=form.name,
        secret=_read_secret(form, path),
        nodes=tuple(_node(path, place, node) for place, node in enumerate(form.nodes)),
        queues=None if form.queues is None else frozenset(form.queues),
        limits=form.limits,
        process=form.process,
    )
    validate(settings)
    return settings


def validate(settings: Settings) -> None:
    """Check the relations between fields; raises ConfigError for the first that does not hold."""
    nodes = settings.nodes
    if len(nodes) not in CLUSTER_SIZES:
        raise ConfigError(
            settings.path, "nodes", f"a cluster has 1, 3 or 5 nodes, not {len(nodes)}"
        )
    _refuse_repeats(settings, "name", [node.name for node in nodes])
    addresses = [address for node in nodes for address in (node.raft, node.http)]
    _refuse_repeats(settings, "address", [str(address) for address in addresses])
    exposed = [address for address in addresses if not address.is_loopback]
    if exposed and len(settings.secret) < MIN_SECRET_CHARACTERS:
        raise ConfigError(
            settings.path,
            "secret",
            f"{exposed[0]} can be reached from outside of this machine: the secret must have at "
            f"least {MIN_SECRET_CHARACTERS} characters",
        )
    if len(nodes) > 1 and len(settings.secret) < MIN_SECRET_CHARACTERS:
        raise ConfigError(
            settings.path,
            "secret",
            f"the nodes prove themselves with it: at least {MIN_SECRET_CHARACTERS} characters "
            "(or name a file with secret_file)",
        )
    if settings.queues is not None and not settings.queues:
        raise ConfigError(settings.path, "queues", "an empty list would serve no queue: leave out")
    limits = settings.limits
    if limits.idempotency_window_ms > limits.idempotency_max_window_ms:
        raise ConfigError(
            settings.path,
            "limits.idempotency_window_ms",
            f"longer than idempotency_max_window_ms, {limits.idempotency_max_window_ms}",
        )
    if len(nodes) > 1 and "{node}" not in settings.process.data_dir:
        hosts = [node.raft.host for node in nodes]
        if len(set(hosts)) < len(hosts):
            raise ConfigError(
                settings.path,
                "process.data_dir",
                "nodes that share a machine need their own folders: put {node} into the path",
            )


def _refuse_repeats(settings: Settings, what: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ConfigError(settings.path, "nodes", f"the {what} {value} is used twice")
        seen.add(value)


def _read_secret(form: _FileForm, path: Path) -> bytes:
    if form.secret is not None and form.secret_file is not None:
        raise ConfigError(path, "secret", "give either secret or secret_file")
    if form.secret_file is None:
        return (form.secret or "").encode()
    file = path.parent / form.secret_file
    try:
        secret = file.read_bytes().strip()
    except OSError as error:
        raise ConfigError(path, "secret_file", f"{file}: {_reason(error)}") from error
    if len(secret) > MAX_SECRET_BYTES:
        raise ConfigError(path, "secret_file", f"{file}: more than {MAX_SECRET_BYTES} bytes")
    return secret


def _node(path: Path, place: int, form: _NodeForm) -> NodeSettings:
    return NodeSettings(
        name=form.name,
        raft=_address(path, f"nodes[{place}].raft", form.raft),
        http=_address(path, f"nodes[{place}].http", form.http),
    )


def _address(path: Path, field: str, text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    if not (colon and _HOST.fullmatch(host) and is_number and int(port) in PORTS):
        raise ConfigError(path, field, f"{text!r} is not host:port, such as 10.0.0.1:7101")
    return Address(host, int(port))


def _reason(error: OSError | UnicodeDecodeError) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return "it is not UTF-8 text"
