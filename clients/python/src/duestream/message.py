"""Messages to schedule."""
from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, Optional, TypedDict, Union

from . import limits
from .errors import DuestreamError, InvalidError
from .limits import Duration

Replace = Literal["replace", "later", "earlier"]


class Options(TypedDict, total=False):
    """The keywords of Client.schedule and Kind.schedule. They are the fields of NewMessage."""

    id: str
    headers: Mapping[str, str]
    delay: Duration
    at: datetime
    spread: Duration
    max_attempts: int
    retry_delays: Sequence[Duration]
    retry_for: Duration
    max_snoozes: int
    max_crashes: int
    handler_timeout: Duration
    keep_result: Duration
    expires: datetime
    expires_in: Duration
    dedup: Duration
    key: str
    replace: Replace


@dataclasses.dataclass(frozen=True)
class NewMessage:
    """A message to schedule. Without delay and at it is due now.

    Durations are a timedelta, or seconds. Points in time have a time zone. None means: by the policy of the queue, or
    not at all.
    """

    payload: Union[bytes, str] = b""
    """At most 16 MiB. A str is sent as UTF-8."""
    id: Optional[str] = None
    """Names the message: 1 to 256 bytes. While a message with this ID is scheduled, another one is refused with
    DuplicateError. None: a new, time-ordered ID."""
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """At most 64 headers, and 32 KiB of names and values together."""
    delay: Duration = 0
    """Time until the message is due, from when the server stores it: at most ten years. Set either delay or at."""
    at: Optional[datetime] = None
    """Due time by the server's clock. A past one means now."""
    spread: Duration = 0
    """Delays the message by a further 0 to spread, chosen by hashing its ID."""
    max_attempts: Optional[int] = None
    """How often the message is delivered to a group until it becomes a dead letter: 1 to 1,000,000."""
    retry_delays: Sequence[Duration] = ()
    """Exact delays after failed attempts, at most 100. The last one repeats."""
    retry_for: Optional[Duration] = None
    """Time from the due time within which retries may be due."""
    max_snoozes: Optional[int] = None
    """How often a group may snooze the message: 1 to 1,000,000."""
    max_crashes: Optional[int] = None
    """How often workers of a group may abandon the message: 1 to 1,000,000."""
    handler_timeout: Optional[Duration] = None
    """How long the message's handler may take."""
    keep_result: Optional[Duration] = None
    """How long the result of each group's handler is kept: from a second to a week."""
    expires: Optional[datetime] = None
    """From this time, by the server's clock, the message becomes a dead letter instead of being delivered."""
    expires_in: Optional[Duration] = None
    """expires as a time from now, by the server's clock. It takes one more round trip."""
    dedup: Optional[Duration] = None
    """Refuses further messages with this ID for this time, even after this one was delivered. It needs an ID."""
    key: Optional[str] = None
    """Ordering key: messages of a queue with the same key are delivered one at a time, in the order of due times."""
    replace: Optional[Replace] = None
    """Replaces the scheduled message with this ID: always, or only if the new due time is later, or earlier; else
    DuplicateError. It needs an ID, and no dedup window."""

    def body(self) -> bytes:
        """Returns the payload as bytes."""
        return self.payload.encode() if isinstance(self.payload, str) else self.payload

    def when(self, id: str) -> str:
        """Returns the due time as scripts take it: "+ms" from now, or Unix ms."""
        spread = limits.millis("spread", self.spread)
        offset = spread_of(id, spread) if spread else 0
        if self.at is not None:
            return str(limits.unix_millis("at", self.at) + offset)
        return f"+{limits.millis('delay', self.delay) + offset}"

    def meta(self, now: int = 0) -> str:
        """Returns headers and settings as a JSON object of strings, or "". expires_in counts from now, in Unix ms."""
        fields = {f"h:{name}": value for name, value in self.headers.items()}
        for name, value in (("max_attempts", self.max_attempts), ("max_snoozes", self.max_snoozes),
                            ("max_crashes", self.max_crashes), ("key", self.key)):
            if value is not None:
                fields[name] = str(value)
        for name, duration in (("retry_for", self.retry_for), ("handler_timeout", self.handler_timeout)):
            if duration is not None:
                fields[f"{name}_ms"] = str(limits.millis(name, duration))
        if self.keep_result is not None:
            fields["result_ms"] = str(limits.millis("keep_result", self.keep_result, 1000, 7 * 24 * 3600 * 1000))
        if self.retry_delays:
            fields["retry_delays_ms"] = ",".join(str(limits.millis("retry_delays", d, 1)) for d in self.retry_delays)
        if self.expires is not None:
            fields["expires_ms"] = str(limits.unix_millis("expires", self.expires))
        elif self.expires_in is not None:
            fields["expires_ms"] = str(now + limits.millis("expires_in", self.expires_in))
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")) if fields else ""

    def window(self) -> str:
        """Returns the argument dedup of the script enqueue."""
        if self.replace is not None:
            return self.replace
        if self.dedup is not None:
            return str(limits.millis("dedup", self.dedup))
        return "" if self.id is None else "0"  # an ID that was made for this message is not compared

    def check(self) -> None:
        """Raises the InvalidError with which the message would be refused."""
        if self.id is not None:
            limits.check_text("id", self.id)
        if self.key is not None:
            limits.check_text("key", self.key)
        limits.check_payload(self.body())
        limits.check_headers(self.headers)
        for name in ("max_attempts", "max_snoozes", "max_crashes"):
            value = getattr(self, name)
            if value is not None:
                limits.check_between(name, value, 1, limits.MAX_ATTEMPTS)
        if len(self.retry_delays) > limits.MAX_DELAYS:
            raise InvalidError("retry_delays", len(self.retry_delays), f"must be at most {limits.MAX_DELAYS}")
        self._check_times()
        if self.dedup is not None and self.id is None:
            raise InvalidError("dedup", self.window(), "needs an ID")
        if self.replace not in (None, "replace", "later", "earlier"):
            raise InvalidError("replace", self.replace, "must be replace, later or earlier")
        if self.replace is not None and (self.id is None or self.dedup is not None):
            raise InvalidError("replace", self.replace, "needs an ID, and no dedup window")
        self.when(self.id or "")
        self.meta()
        self.window()

    def _check_times(self) -> None:
        if self.at is not None and self.delay:
            raise InvalidError("delay", self.delay, "must be zero when a point in time is given")
        if self.expires is not None and self.expires_in is not None:
            raise InvalidError("expires_in", self.expires_in, "must be None when a point in time is given")
        spread = limits.millis("spread", self.spread)
        latest = limits.millis("delay", self.delay) + spread
        if latest > limits.TEN_YEARS_MS:
            raise InvalidError("spread", self.spread, "must be at most ten years, including delay")
        if self.expires_in is not None and self.at is None:
            if limits.millis("expires_in", self.expires_in) <= latest:
                raise InvalidError("expires_in", self.expires_in,
                                   f"must be after the due time, which is in {latest / 1000:g} s at the latest")
        if self.expires is not None and self.at is not None:
            if limits.unix_millis("expires", self.expires) <= limits.unix_millis("at", self.at) + spread:
                raise InvalidError("expires", self.expires.isoformat(), "must be after the due time")


@dataclasses.dataclass(frozen=True)
class Receipt:
    """A stored message: its ID, and its due time by the server's clock."""

    id: str
    due: datetime
    ready: bool = False
    """The message was due, and workers get it already."""
    replaced: bool = False
    """The message replaced another one."""


@dataclasses.dataclass(frozen=True)
class Result:
    """The answer to one message of a batch: a receipt, or the error with which it was refused."""

    id: str
    receipt: Optional[Receipt] = None
    error: Optional[DuestreamError] = None


@dataclasses.dataclass(frozen=True)
class MessageResult:
    """The result of a message for a group."""

    value: bytes
    """Set by the handler with Message.set_result; empty if it set none."""
    attempt: int
    """The attempt that succeeded."""
    done: datetime
    """When it was acknowledged, by the server's clock."""


def spread_of(id: str, spread_ms: int) -> int:
    """Returns the offset in ms that every client of duestream gives to this ID."""
    return int.from_bytes(hashlib.sha256(id.encode()).digest()[:8], "big") % spread_ms


_ULID = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def new_id() -> str:
    """Returns a new ULID: 26 characters that sort by time."""
    number = time.time_ns() // 1_000_000 << 80 | int.from_bytes(os.urandom(10), "big")
    return "".join(_ULID[number >> shift & 31] for shift in range(125, -1, -5))
