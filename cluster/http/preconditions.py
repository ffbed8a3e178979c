"""Conditional requests (RFC 9110, section 13): the versions that a change may come upon.

A job's entity tag is its version: `"3"`. By its name a job is tagged with its id too, `"17-3"`,
for the name may have gone to another job meanwhile, whose versions count anew; `"3"` alone is
understood there as well. A queue's settings are tagged with their version, too. Weak tags never
match, as `If-Match` wants it.
"""

from __future__ import annotations

import re

import msgspec

from timeball.client.errors import InvalidRequest
from timeball.cluster.http.exchange import Request
from timeball.cluster.state.records import Job

IF_MATCH = "if-match"
IF_NONE_MATCH = "if-none-match"
_TAG = re.compile(r'(?P<weak>W/)?"(?P<text>[^"\x00-\x20\x7f]*)"')
_SETTINGS = re.compile(r"0|[1-9]\d{0,15}", re.ASCII)
_VERSION = re.compile(r"(?:(?P<job>[1-9]\d{0,15})-)?(?P<version>[1-9]\d{0,15})", re.ASCII)


def etag_of(version: int) -> str:
    """The entity tag of a job."""
    return f'"{version}"'


def named_etag_of(job: int, version: int) -> str:
    """The entity tag of a job that was asked for by name."""
    return f'"{job}-{version}"'


class Condition(msgspec.Struct, frozen=True):
    """What `If-Match` asks for: any version of an existing job, or one of those tagged."""

    tags: tuple[str, ...] | None
    """Strong tags; None: any."""

    def version_of(self, job: Job, *, named: bool = False) -> int | None:
        """The version at which to change the job: 0 for any, None if no tag can be of it.

        What is returned need not be the version of `job`: whether it still holds when the change
        comes is for the log to say.
        """
        if self.tags is None:
            return 0
        versions: list[int] = []
        for tag in self.tags:
            found = _VERSION.fullmatch(tag)
            if found is None or (found["job"] is not None and not named):
                continue
            if found["job"] in (None, str(job.id)):
                versions.append(int(found["version"]))
        if job.version in versions:
            return job.version
        return versions[0] if versions else None

    def version_among(self, present: int) -> int | None:
        """The version at which to change settings of a queue, which are at `present`: -1 for
        any, None if no tag can be of them. The default is at version 0."""
        if self.tags is None:
            return -1
        versions = [int(tag) for tag in self.tags if _SETTINGS.fullmatch(tag)]
        if present in versions:
            return present
        return versions[0] if versions else None


def read_if_match(request: Request) -> Condition | None:
    """The condition of a change; None when there is none. Raises InvalidRequest."""
    text = request.headers.get(IF_MATCH)
    if text is None:
        return None
    return Condition(None if text == "*" else tuple(_strong_tags(text)))


def read_if_none_match(request: Request) -> bool:
    """Whether nothing may be there yet: `If-None-Match: *`, which is all that is understood."""
    text = request.headers.get(IF_NONE_MATCH)
    if text is not None and text != "*":
        raise InvalidRequest.at(IF_NONE_MATCH, "expected `*`: nothing else is understood here")
    return text is not None


def refuse_conditions(request: Request, *names: str) -> None:
    """Raise InvalidRequest for a condition that would be ignored."""
    for name in names or (IF_MATCH, IF_NONE_MATCH):
        if name in request.headers:
            raise InvalidRequest.at(name, "this request can not be made conditional so")


def _strong_tags(text: str) -> list[str]:
    expected = 'expected `*`, or entity tags such as "3", "4"'
    tags: list[str] = []
    rest = text.lstrip(" \t,")
    while rest:
        found = _TAG.match(rest)
        if found is None:
            raise InvalidRequest.at(IF_MATCH, expected)
        if not found["weak"]:
            tags.append(found["text"])
        rest = rest[found.end() :].lstrip(" \t")
        if rest and not rest.startswith(","):
            raise InvalidRequest.at(IF_MATCH, expected)
        rest = rest.lstrip(" \t,")
    return tags
