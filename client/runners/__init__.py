"""Runners: handlers for workers without code, which run a command or call a URL."""

from timeball.client.runners.command import CommandRunner
from timeball.client.runners.webhook import WebhookRunner

__all__ = ["CommandRunner", "WebhookRunner"]
