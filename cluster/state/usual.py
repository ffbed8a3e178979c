"""What most jobs have: one object of each for all of them, on every path into the state.

So to tell the usual from the rest is to compare two addresses.
"""

from __future__ import annotations

from typing import Final

from timeball.cluster.state.operations import KeyRule, Options, RetryPolicy

DEFAULT_POLICY: Final = RetryPolicy()
NO_OPTIONS: Final = Options()
PLAIN_KEY: Final = KeyRule()
