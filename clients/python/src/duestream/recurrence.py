"""Messages that are scheduled again and again."""
from __future__ import annotations

import base64
import dataclasses
import json
import re
import zoneinfo
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, Optional, Union

from . import limits
from .errors import InvalidError
from .limits import Duration

_MAX_PAYLOAD_BYTES = 1 << 20
_MAX_COUNT = 1_000_000_000
_DAY_MS = 24 * 3600 * 1000


@dataclasses.dataclass(frozen=True)
class Recurrence:
    """A message that a bridge schedules again and again, with the ID <name>@<Unix ms of the occurrence>.

    Set either cron or every. Queue and name identify a recurrence.
    """

    name: str
    queue: str
    payload: Union[bytes, str] = b""
    """At most 1 MiB."""
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cron: Optional[str] = None
    """Five fields (minute, hour, day of the month, month, day of the week), six with seconds in front, or @daily and
    the like."""
    zone: Optional[str] = None
    """Time zone of cron, like Europe/Paris. None: UTC."""
    every: Optional[Duration] = None
    """Interval, in place of cron: from a second to ten years."""
    phase: Duration = 0
    """Less than every: occurrences are at 1970-01-01T00:00:00Z + phase + n × every."""
    start: Optional[datetime] = None
    end: Optional[datetime] = None
    count: int = 0
    """Greatest number of occurrences. 0: no limit."""
    jitter: Duration = 0
    """Greatest extra delay of a message, chosen by hashing its ID: at most a day."""
    missed: Literal["once", "skip", "all"] = "once"
    """The occurrences that are planned late if no bridge was alive at their time: the last one (once), none (skip), or
    the last 100 (all)."""
    overlap: Literal["allow", "skip"] = "allow"
    """skip: no occurrence is planned while the message of the one before is unfinished."""
    paused: bool = False
    owner: Optional[str] = None
    """Label of the program that keeps the recurrence. `duestream recur apply` changes only those with its label."""

    def check(self) -> None:
        """Raises InvalidError for the first wrong field."""
        limits.check_queue(self.queue)
        limits.check_text("name", self.name, 200)
        limits.check_headers(self.headers)
        limits.check_payload(self._body(), _MAX_PAYLOAD_BYTES)
        if (self.cron is None) == (self.every is None):
            raise InvalidError("cron", self.cron or "", "must be given if every is not, and only then")
        if self.cron is not None:
            check_cron(self.cron)
            check_zone(self.zone)
            if self.phase:
                raise InvalidError("phase", self.phase, "must not be given beside cron")
        if self.every is not None:
            every = limits.millis("every", self.every, 1000)
            limits.millis("phase", self.phase, 0, every - 1)
            if self.zone is not None:
                raise InvalidError("zone", self.zone, "must not be given beside every")
        if self.start and self.end and self.end <= self.start:
            raise InvalidError("end", self.end.isoformat(), "must be after start")
        limits.check_between("count", self.count, 0, _MAX_COUNT)
        if self.missed not in ("once", "skip", "all"):
            raise InvalidError("missed", self.missed, "must be skip, once or all")
        if self.overlap not in ("allow", "skip"):
            raise InvalidError("overlap", self.overlap, "must be allow or skip")
        if self.owner is not None:
            limits.check_text("owner", self.owner, 128)
        self.spec()

    def _body(self) -> bytes:
        return self.payload.encode() if isinstance(self.payload, str) else self.payload

    def spec(self) -> str:
        """Returns the JSON that Redis stores. A field with its default is left out."""
        fields: dict[str, Any] = {
            "name": self.name, "queue": self.queue, "cron": self.cron, "zone": self.zone, "owner": self.owner,
            "headers": dict(self.headers), "count": self.count, "paused": self.paused,
            "missed": self.missed, "overlap": self.overlap,
            "every_ms": limits.millis("every", self.every) if self.every is not None else 0,
            "phase_ms": limits.millis("phase", self.phase),
            "jitter_ms": limits.millis("jitter", self.jitter, 0, _DAY_MS),
            "start_ms": limits.unix_millis("start", self.start) if self.start else 0,
            "end_ms": limits.unix_millis("end", self.end) if self.end else 0,
        }
        if self.cron is not None and self.zone is None:
            fields["zone"] = "UTC"
        try:
            fields["payload"] = self._body().decode()
        except UnicodeDecodeError:
            fields["payload_base64"] = base64.b64encode(self._body()).decode()
        return json.dumps({name: value for name, value in fields.items() if value}, ensure_ascii=False,
                          separators=(",", ":"))

    @classmethod
    def parse(cls, queue: str, name: str, spec: Mapping[str, Any]) -> "Recurrence":
        """Returns the recurrence of a spec, the inverse of spec."""
        payload = spec.get("payload", "")
        if not isinstance(payload, str):  # any other JSON stands for its text
            payload = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
        body = base64.b64decode(spec["payload_base64"]) if "payload_base64" in spec else payload.encode()

        def instant(field: str) -> Optional[datetime]:
            return limits.from_unix_millis(spec[field]) if spec.get(field) else None

        return cls(name, queue, body, spec.get("headers") or {}, cron=spec.get("cron"), zone=spec.get("zone"),
                   every=spec["every_ms"] / 1000 if spec.get("every_ms") else None,
                   phase=spec.get("phase_ms", 0) / 1000, start=instant("start_ms"), end=instant("end_ms"),
                   count=spec.get("count", 0), jitter=spec.get("jitter_ms", 0) / 1000,
                   missed=spec.get("missed", "once"), overlap=spec.get("overlap", "allow"),
                   paused=spec.get("paused", False), owner=spec.get("owner"))


def check_zone(zone: Optional[str]) -> None:
    if zone is None:
        return
    try:
        zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidError("zone", zone, "must be a time zone like Europe/Paris or UTC") from None


_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_CRON_FIELDS: list[tuple[str, int, int, list[str]]] = [
    ("second", 0, 59, []), ("minute", 0, 59, []), ("hour", 0, 23, []), ("day of the month", 1, 31, []),
    ("month", 1, 12, _MONTHS), ("day of the week", 0, 7, _DAYS)]
_CRON_WORDS = {"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"}


def check_cron(cron: str) -> None:
    """Refuses expressions that bridges cannot plan."""
    text = cron.strip().lower()
    if len(cron.encode()) > 512:
        raise InvalidError("cron", cron, "must be at most 512 bytes")
    if text.startswith("@"):
        if text not in _CRON_WORDS:
            raise InvalidError("cron", cron,
                               "must be @yearly, @monthly, @weekly, @daily or @hourly if it begins with @")
        return
    if "=" in text:
        raise InvalidError("cron", cron, "must not name a time zone: use the field zone")
    words = text.split()
    if len(words) not in (5, 6):
        raise InvalidError("cron", cron, "must have 5 fields (minute, hour, day of the month, month, day of the week), "
                           f"or 6 with seconds in front; it has {len(words)}")
    for word, (name, least, most, names) in zip(words, _CRON_FIELDS[-len(words):]):
        for part in word.split(","):
            _check_cron_part(cron, part, name, least, most, names)


def _check_cron_part(cron: str, part: str, field: str, least: int, most: int, names: list[str]) -> None:
    span, stepped, step = part.partition("/")
    if stepped and not (re.fullmatch("[0-9]+", step) and 1 <= int(step) <= most):
        raise InvalidError("cron", cron, f'the {field} is "{part}": a step must be 1 to {most}')
    if span in ("*", "?"):
        return
    values = []
    for value in span.split("-", 1):
        number = least + names.index(value) if value in names else int(value) if re.fullmatch("[0-9]+", value) else -1
        if not least <= number <= most:
            raise InvalidError("cron", cron, f'the {field} is "{value}": must be {least} to {most}')
        values.append(number)
    if values[0] > values[-1]:
        raise InvalidError("cron", cron, f'the {field} is "{part}": a range must not run backwards')
