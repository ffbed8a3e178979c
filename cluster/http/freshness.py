"""How fresh a read must be: the query parameters that every read takes, and the wait for them."""

from __future__ import annotations

from timeball.client.errors import InvalidRequest
from timeball.client.messages import MAX_INDEX
from timeball.cluster.http.paging import read_choice
from timeball.cluster.raft.interface import Replica

FRESHNESS = ("consistency", "min_index")
CONSISTENCIES = ("applied", "strong")


async def wait_until_fresh(parameters: dict[str, str], replica: Replica) -> None:
    """Return once this node's state is as fresh as asked for; look at it in the same turn.

    Raises InvalidRequest naming the parameter, before any waiting, and what `Replica.read` raises.
    """
    strong = read_choice(parameters, "consistency", CONSISTENCIES) == "strong"
    min_index = read_min_index(parameters)
    if strong or min_index > replica.applied_index:
        await replica.read(min_index, strong=strong)


def read_min_index(parameters: dict[str, str]) -> int:
    """The position of the log that must be applied; 0 when any will do."""
    text = parameters.get("min_index")
    if text is None:
        return 0
    if text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= MAX_INDEX:
        return int(text)
    raise InvalidRequest.at(
        "min_index", f"expected an integer from 0 to {MAX_INDEX}, got {text[:50]!r}"
    )
