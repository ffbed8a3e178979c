"""By how much a job's occurrences come after their nominal times."""

from __future__ import annotations

import hashlib


def jitter_offset(job: int, jitter_ms: int) -> int:
    """A constant share of `jitter_ms`, 0 to all of it, that depends on the job's id alone.

    Every node computes the same one. Being constant it spreads jobs, while the occurrences
    of each keep their order and distances.
    """
    if jitter_ms <= 0:
        return 0
    digest = hashlib.blake2b(b"jitter-%d" % job, digest_size=8).digest()
    return int.from_bytes(digest, "big") % (jitter_ms + 1)
