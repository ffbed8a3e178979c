"""The refusal of a write by an older holder."""

from __future__ import annotations


class StaleToken(Exception):
    """A holder with a newer token has written to `resource`: this one's write was refused.

    Nothing was written. The lease was lost, and the cluster refuses the report as well: let it
    pass, and end.
    """

    def __init__(self, resource: str, token: int) -> None:
        super().__init__(f"{resource}: token {token} is older than one that has written")
        self.resource = resource
        self.token = token


def check(changed: int, resource: str, token: int) -> None:
    """Raise `StaleToken` when a conditional write changed no row.

    For a fence that is a column of your own table: `changed` is the `rowcount` after
    ``UPDATE … SET …, fence = :token WHERE id = :id AND fence <= :token``.
    """
    if changed < 0:
        raise ValueError(f"the number of changed rows is not known: {changed}")
    if changed == 0:
        raise StaleToken(resource, token)
