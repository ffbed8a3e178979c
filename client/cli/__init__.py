"""The command line `timeball`."""

from timeball.client.cli.group import main

__all__ = ["main"]
