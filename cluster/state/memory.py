"""What the state remembers for a while: requests and claims (idempotency keys: `keys`).

Each memory forgets by log-time and by size, oldest first, a bounded number per entry.
A record that is too old counts as forgotten even before its turn to be removed, so the
window is exact. The lookup is spread over many small dicts, because one large dict
rebuilds in one go, on all nodes at the same entry. Which small dict a key is in
depends on the process's string hashing; nothing that can be seen does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from librt.strings import BytesWriter, read_i64_le, write_i64_le
from msgspec.structs import astuple
from mypy_extensions import mypyc_attr

from timeball.cluster.state.fifo import Fifo
from timeball.cluster.state.verdicts import Created, CreateStatus

_SHARDS: Final = 64
_STATUSES: Final = {int(status): status for status in CreateStatus}
_WIDTH: Final = 3
"""Numbers of an answer to one job: its status, the job, its first nominal time."""


@mypyc_attr(acyclic=True)
class Remembered:
    """Something known by a key since a log-time (epoch ms).

    What it knows are numbers of eight bytes: there are many, and most are never asked for.
    """

    __slots__ = ("_numbers", "key", "since_ms")

    def __init__(self, key: str, since_ms: int, numbers: bytes) -> None:
        self.key = key
        self.since_ms = since_ms
        self._numbers = numbers

    def numbers(self) -> list[int]:
        """What it knows."""
        numbers = self._numbers
        return [read_i64_le(numbers, at) for at in range(0, len(numbers), 8)]

    def weight(self) -> int:
        """Its share of the memory's limit."""
        raise NotImplementedError


@mypyc_attr(acyclic=True)
class Request(Remembered):
    """A request id of `CreateJobs`, or of a trigger, and the answer."""

    __slots__ = ("of_trigger",)

    def __init__(
        self, key: str, since_ms: int, answer: list[Created], of_trigger: bool = False
    ) -> None:
        numbers = BytesWriter()
        for created in answer:
            fields: tuple[int, int, int] = astuple(created)
            status, job, nominal_ms = fields
            write_i64_le(numbers, status)
            write_i64_le(numbers, job)
            write_i64_le(numbers, nominal_ms)
        super().__init__(key, since_ms, numbers.getvalue())
        self.of_trigger = of_trigger

    def answer(self) -> list[Created]:
        """The answer to each job, as it was given."""
        numbers = self.numbers()
        return [
            Created(_STATUSES[numbers[at]], numbers[at + 1], numbers[at + 2])
            for at in range(0, len(numbers), _WIDTH)
        ]

    def weight(self) -> int:
        """The number of jobs answered for."""
        return len(self._numbers) // (8 * _WIDTH)


@mypyc_attr(acyclic=True)
class Granted(Remembered):
    """A request id of `Claim` and the tokens that it was granted."""

    __slots__ = ()

    def __init__(self, key: str, since_ms: int, tokens: list[int]) -> None:
        numbers = BytesWriter()
        for token in tokens:
            write_i64_le(numbers, token)
        super().__init__(key, since_ms, numbers.getvalue())

    def weight(self) -> int:
        """The number of leases granted."""
        return len(self._numbers) // 8


R = TypeVar("R", bound=Remembered)


class Memory(Generic[R]):
    """Records by key, forgotten oldest first."""

    __slots__ = ("_order", "_shards", "total")

    def __init__(self) -> None:
        self._order: Fifo[R] = Fifo()
        self._shards: list[dict[str, R]] = [{} for _ in range(_SHARDS)]
        self.total = 0
        """The sum of the weights held."""

    def __iter__(self) -> Iterator[R]:
        """Those of this moment, oldest first."""
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def find(self, key: str, now_ms: int, window_ms: int) -> R | None:
        """The record of `key`, unless it is `window_ms` old or older."""
        record = self._shards[hash(key) % _SHARDS].get(key)
        if record is None or record.since_ms + window_ms <= now_ms:
            return None
        return record

    def add(self, record: R) -> None:
        """Remember a record that is not older than any other; it hides one of the same key."""
        self._shards[hash(record.key) % _SHARDS][record.key] = record
        self._order.append(record)
        self.total += record.weight()

    def trim(self, now_ms: int, window_ms: int, limit: int, steps: int) -> None:
        """Forget what is too old or beyond `limit`, at most `steps` records."""
        order = self._order
        for _ in range(min(steps, len(order))):
            oldest = order.oldest
            if self.total <= limit and oldest.since_ms + window_ms > now_ms:
                return
            order.take()
            self.total -= oldest.weight()
            shard = self._shards[hash(oldest.key) % _SHARDS]
            if shard.get(oldest.key) is oldest:
                del shard[oldest.key]
