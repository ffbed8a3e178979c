"""Handlers that a process can import."""

from __future__ import annotations

import os
import time

from timeball.client import ExecutionContext


def pid(_context: ExecutionContext) -> int:
    time.sleep(0.05)
    return os.getpid()
