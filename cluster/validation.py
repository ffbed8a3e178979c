"""Turning msgspec's messages into (field, detail) pairs that name the field as users write it."""

from __future__ import annotations

import re

import msgspec

_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>.*)`\Z", re.DOTALL)
_NAMED = re.compile(
    r"\AObject (?:contains unknown|missing required) field `(?P<name>.*)`\Z", re.DOTALL
)
MAX_FIELD = 200
MAX_DETAIL = 500


def blame(error: msgspec.ValidationError) -> tuple[str, str]:
    """Split a validation error into the field at fault and what is wrong with it.

    The field is a path such as ``jobs[3].priority``; empty when the whole document is of
    the wrong kind. A field that is missing or unknown is named itself, not its parent.
    """
    text = str(error)
    place = _PLACE.search(text)
    path = place["path"] if place else ""
    detail = text[: place.start()] if place else text
    named = _NAMED.match(detail)
    if named:
        path = f"{path}.{named['name']}" if path else named["name"]
        detail = "unknown field" if "unknown" in detail else "required field is missing"
    return path[:MAX_FIELD], detail[:MAX_DETAIL]
