"""Effects done once: the fencing token enforced where the effect happens.

A worker may be paused for longer than its lease, and wake up in the middle of a write while
another one holds the execution. The cluster refuses its report; only the store that it writes to
can refuse its write. Each grant's token is higher than all before it, so the store keeps the
highest token that it has seen and takes nothing with a lower one:

    from timeball.client.fencing import StaleToken, sqlite      # or postgres

    with sqlite.fenced(connection, "report-7", execution.token):
        connection.execute("UPDATE reports SET …")              # StaleToken if a newer one wrote

`once` is for effects that must not be repeated by a later attempt either:

    with sqlite.once(connection, execution.idempotency_key) as first:
        if first:
            connection.execute("INSERT INTO payments …")

Both put their mark and the write of the block into one transaction.
"""

from timeball.client.fencing.stale import StaleToken, check

__all__ = ["StaleToken", "check"]
