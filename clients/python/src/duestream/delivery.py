"""The message that a handler gets, and the errors by which a handler chooses its outcome."""
from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
import re
import threading
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Optional, Union

from . import limits
from .errors import DuestreamError, HandlerTimeoutError, InvalidError
from .limits import Duration


class RetryAfter(Exception):
    """A handler raises it to fail: the message is delivered again after this delay, as the next attempt."""

    def __init__(self, delay: Duration, error: object = "retry requested") -> None:
        super().__init__(str(error))
        self.delay_ms = limits.millis("delay", delay)


class DeadLetter(Exception):
    """A handler raises it to give the message up: it becomes a dead letter at once, with this error."""

    def __init__(self, error: object = "dead letter requested") -> None:
        super().__init__(str(error))


class Snooze(Exception):
    """A handler raises it if the work cannot be done yet: the message is delivered again after this delay, as the same
    attempt. The policy limits the number of snoozes of a message (default 1,000)."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(f"snoozed for {delay}")
        self.delay_ms = limits.millis("delay", delay)


class Release(Exception):
    """A handler raises it to give the message back: it is delivered again at once, as the same attempt."""

    def __init__(self, error: object = "released") -> None:
        super().__init__(str(error))


class Settlement(enum.Enum):
    """How a delivery ended for a worker."""

    ACKNOWLEDGED = "acknowledged"
    RETRIED = "retried"
    DEAD = "dead"
    RELEASED = "released"
    SNOOZED = "snoozed"
    SKIPPED = "skipped"
    """The entry was for another group: acknowledged without a handler."""
    CANCELLED = "cancelled"
    LOST = "lost"
    """The worker did not hold the entry any more: the result of the handler has no effect."""
    UNKNOWN = "unknown"
    """The worker cannot tell: it ended before Redis answered, or a reply was lost and the call repeated. Then either
    its first try settled the entry, or another worker did."""
    STUCK = "stuck"
    """The stream of dead letters refused the entry: it comes back after the visibility timeout."""


@dataclasses.dataclass
class Message:
    """One delivery of a message."""

    id: str
    """The entry ID if another program added the entry without a message ID."""
    payload: bytes = b""
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    attempt: int = 1
    queue: str = ""
    group: str = ""
    consumer: str = ""
    partition: int = 0
    entry_id: str = ""
    due: Optional[datetime] = None
    max_attempts: Optional[int] = None
    """The message's own limit. None: that of the policy."""
    expires: Optional[datetime] = None
    recipient: str = ""
    """The only group that a retry is for. Empty: every group."""
    error: str = ""
    """Error of the last failed attempt."""
    progress: bytes = b""
    """What the group's last attempt stored with save_progress, or an attempt before it. Empty: none."""
    extra: dict[str, str] = dataclasses.field(default_factory=dict)
    """All other fields of the entry, like snoozes, key and last_trace."""

    def __post_init__(self) -> None:
        self._told = threading.Event()
        self._cause: Optional[DuestreamError] = None
        self._result: Optional[bytes] = None
        self._stored: Optional[bytes] = None  # the progress of this attempt; None: it stored none
        self._saver: Optional[Saver] = None  # None: no worker delivered the message

    @property
    def cause(self) -> Optional[DuestreamError]:
        """Why the handler should stop: LostError, UnreachableError, CancelledError, StoppingError, HandlerTimeoutError.

        None while it should go on. A function that works for long should check it regularly. A coroutine is cancelled.
        """
        return self._cause

    def wait(self, duration: Duration) -> bool:
        """Waits for a time, or until the handler should stop. Returns whether it should stop."""
        return self._told.wait(limits.millis("duration", duration) / 1000)

    def set_result(self, value: Union[bytes, str]) -> None:
        """Sets the result that is kept if the message was sent with keep_result: at most 64 KiB."""
        result = value.encode() if isinstance(value, str) else value
        if len(result) > limits.MAX_RESULT_BYTES:
            raise InvalidError("result", f"of {len(result)} bytes", f"must be at most {limits.MAX_RESULT_BYTES} bytes")
        self._result = result

    def save_progress(self, cursor: Union[bytes, str]) -> None:
        """Stores how far the work has come, at most 4 KiB. The next attempt of the group gets it in progress.

        It is there after an error, a snooze, a release or a timeout, and also if this process is killed after the call
        has returned. With an empty cursor the next attempt begins anew. It takes one round trip, and must not be called
        by two threads at once. A coroutine calls save_progress_async.

        LostError, CancelledError: nothing was stored, and the handler should stop. UnavailableError: the cursor may be
        stored or not.
        """
        stored = self._check_progress(cursor)
        if self._saver is not None:
            self._saver.save(stored)
        self.progress = stored

    async def save_progress_async(self, cursor: Union[bytes, str]) -> None:
        """Does the same as save_progress, in a coroutine."""
        stored = self._check_progress(cursor)
        if self._saver is not None:
            await self._saver.save_async(stored)
        self.progress = stored

    def _check_progress(self, cursor: Union[bytes, str]) -> bytes:
        stored = cursor.encode() if isinstance(cursor, str) else bytes(cursor)
        if len(stored) > limits.MAX_PROGRESS_BYTES:
            raise InvalidError("cursor", f"of {len(stored)} bytes",
                               f"must be at most {limits.MAX_PROGRESS_BYTES} bytes")
        if self._saver is None:
            self._stored = stored
        return stored

    def _tell(self, cause: DuestreamError) -> None:
        if self._cause is None:
            self._cause = cause
        self._told.set()


@dataclasses.dataclass(frozen=True)
class Saver:
    """Stores the progress of a delivery: from a thread, and from a coroutine of the worker's event loop."""

    save: Callable[[bytes], None]
    save_async: Callable[[bytes], Awaitable[None]]


Handler = Callable[[Message], Any]
"""A function, or a coroutine function. Its return value is ignored."""

_OWN_FIELDS = {"id", "payload", "attempt", "due_ms", "max_attempts", "expires_ms", "for", "error",
               "progress", "b64:progress"}


def parse_entry(entry: bytes, values: list[bytes], queue: str, partition: int, group: str, consumer: str) -> Message:
    """Returns the message of an entry of the stream."""
    pairs = dict(zip(values[::2], values[1::2]))
    fields = {name.decode(errors="replace"): value.decode(errors="replace")
              for name, value in pairs.items() if name != b"payload"}

    def number(name: str) -> Optional[int]:
        text = fields.get(name, "")
        return int(text) if re.fullmatch("[0-9]{1,15}", text) and int(text) > 0 else None

    def instant(name: str) -> Optional[datetime]:
        ms = number(name)
        return limits.from_unix_millis(ms) if ms is not None and ms <= 10**13 else None

    progress = pairs.get(b"progress", b"")
    if b"progress" not in pairs:
        try:
            progress = base64.b64decode(pairs.get(b"b64:progress", b""), validate=True)
        except binascii.Error:
            pass
    # A producer cannot give progress to the first attempt.
    is_valid = fields.get("for") and len(progress) <= limits.MAX_PROGRESS_BYTES

    entry_id = entry.decode()
    return Message(
        id=fields.get("id", entry_id), payload=pairs.get(b"payload", b""),
        headers={name[2:]: value for name, value in fields.items() if name.startswith("h:")},
        attempt=number("attempt") or 1, queue=queue, group=group, consumer=consumer, partition=partition,
        entry_id=entry_id, due=instant("due_ms"), max_attempts=number("max_attempts"), expires=instant("expires_ms"),
        recipient=fields.get("for", ""), error=fields.get("error", ""), progress=progress if is_valid else b"",
        extra={name: value for name, value in fields.items() if name not in _OWN_FIELDS and not name.startswith("h:")})


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a delivery whose handler raised an error, as arguments of the script retry."""

    action: str
    delay_ms: Optional[int] = None
    reason: str = ""
    error: str = ""

    def arguments(self, progress: Optional[bytes]) -> list[Union[str, bytes]]:
        """Returns the arguments. progress is what the attempt stored; None: nothing."""
        action = self.action.encode()
        if progress is not None:
            action += b"\n" + progress
        return [action, "" if self.delay_ms is None else str(self.delay_ms), self.reason, self.error]


def outcome_of(error: BaseException) -> Outcome:
    """Returns the outcome that a handler chose by the error that it raised."""
    text = limits.cut_text(str(error) or type(error).__name__)
    if isinstance(error, Snooze):
        return Outcome("snooze", error.delay_ms, "max_snoozes")
    if isinstance(error, Release):
        return Outcome("release")
    if isinstance(error, DeadLetter):
        return Outcome("dead", None, "dead_letter", text)
    if isinstance(error, RetryAfter):
        return Outcome("retry", error.delay_ms, "max_attempts", text)
    return Outcome("retry", None, "max_attempts", text)


def timeout_outcome(error: BaseException, timeout: float) -> Outcome:
    """Returns the outcome of a handler that failed after its time limit. The attempt counts, even if the handler asked
    for a snooze or a release. If it asked for a dead letter, the message becomes one."""
    asked = outcome_of(error)
    if asked.action == "dead":
        return asked
    text = f"handler_timeout: not done after {timeout:g} s"
    if asked.error and not isinstance(error, HandlerTimeoutError):
        text += f": {asked.error}"
    delay = asked.delay_ms if asked.action == "retry" else None
    return Outcome("retry", delay, "handler_timeout", limits.cut_text(text))


