"""The partition counts of a queue, and the protocol levels of live bridges."""
from __future__ import annotations

import re
import time
from typing import Any, Optional

from .errors import OldBridgeError
from .wire import MAX_PARTITIONS, Steps, ask, evaluate, server_time, text_of

LOOK_EVERY = 5.0  # seconds


def parse_counts(reply: Any) -> set[int]:
    """Returns the partition counts in a field of the registry."""
    words = text_of(reply).split(",")
    return {int(word) for word in words if word.isdecimal() and 1 <= int(word) <= MAX_PARTITIONS}


class Counts:
    """All partition counts that this client has read from the registry for a queue.

    Counts that the registry lost are kept. Counts of a deleted queue are forgotten.
    """

    def __init__(self, prefix: str, queue: str) -> None:
        self.queue, self.known, self._read = queue, {1}, -LOOK_EVERY
        self._queues, self._wake = f"{prefix}:queues", f"{prefix}:wake"

    @property
    def latest(self) -> int:
        return max(self.known)

    def stale(self) -> None:
        """Makes the next refresh read the registry."""
        self._read = -LOOK_EVERY

    def refresh(self, register: bool) -> Steps[int]:
        """Returns how many partitions the queue has. It reads the registry if the last answer is older than 5 s.

        With register it adds the queue, or counts that the registry lost.
        """
        began = time.monotonic()
        if began - self._read < LOOK_EVERY:
            return self.latest
        (reply,) = yield from ask(("HGET", self._queues, self.queue))
        found = parse_counts(reply) | {1}
        if register and (reply is None or not self.known <= found):
            # With "-" the script leaves out the counts of a deleted queue.
            counts = ",".join(["-", *map(str, sorted(self.known | found))])
            if (yield from evaluate("register", [self._queues], self.queue, counts)):
                yield from ask(("XADD", self._wake, "MAXLEN", 1, "*", "queues", 1))
        if self.known <= found:
            self.known = found
        else:
            reply, deleted = yield from ask(("HGET", self._queues, self.queue),
                                            ("HGET", self._queues, f"/deleted/{self.queue}"))
            self.known = self.known - parse_counts(deleted) | parse_counts(reply) | {1}
        self._read = began
        return self.latest


_ULID = re.compile("[0-7][0-9A-HJKMNP-TV-Z]{25}")
_ALIVE_MS = 5000


class Levels:
    """Refuses features that a live bridge does not serve. It reads the bridges at most every 5 s."""

    def __init__(self, prefix: str, allow_old: bool) -> None:
        self._bridges, self._allow_old = f"{prefix}:bridges", allow_old
        self._read, self._lowest, self._name = -LOOK_EVERY, 0, ""

    def allow(self, level: int, what: str) -> Steps[None]:
        """Raises OldBridgeError if a live bridge has a lower level. Without a live bridge it allows everything."""
        if self._allow_old:
            return
        now = time.monotonic()
        if now - self._read >= LOOK_EVERY:
            yield from self._look()
            self._read = now
        if self._name and self._lowest < level:
            raise OldBridgeError(f"bridge {self._name} has protocol level {self._lowest}, and {what} need level "
                                 f"{level}: upgrade it, or stop it")

    def _look(self) -> Steps[None]:
        clock, beats = yield from ask(("TIME",), ("ZRANGE", self._bridges, 0, -1, "WITHSCORES"))
        now, lowest, name = server_time(clock), 0, ""
        for member, beat in zip(beats[::2], beats[1::2]):
            words = text_of(member).split(" ")
            if not _ULID.fullmatch(words[0]) or abs(now - float(beat)) > _ALIVE_MS:
                continue
            level = level_of(words)
            if not name or level < lowest:
                lowest, name = level, words[0]
        self._lowest, self._name = lowest, name


def level_of(words: list[str]) -> int:
    """Returns the protocol level in the words of a bridge's heartbeat."""
    stated: Optional[re.Match[str]] = re.fullmatch(r"p([0-9]{1,6})", words[4]) if len(words) > 4 else None
    return max(1, int(stated[1])) if stated else 1


