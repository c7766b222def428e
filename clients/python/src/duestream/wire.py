"""The keys, commands and scripts that both drivers, the synchronous and the asyncio one, send to Redis.

The protocol is written once, as generators. A generator yields commands, and gets their replies. It yields a Sleep to
wait. A driver performs these requests, with a blocking client or with an asyncio client.
"""
from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.resources
import random
import time
import zlib
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar, Union

import redis

from .errors import UnavailableError, UncertainError, classify

T = TypeVar("T")
Command = tuple[Union[str, bytes, int], ...]


class Sleep(NamedTuple):
    """Asks the driver to wait."""

    seconds: float


Request = Union[Sequence[Command], Sleep]
Steps = Generator[Request, Any, T]
"""A generator that yields requests to a driver, and returns a T."""

SEPARATOR = "\x1f"
MAX_PARTITIONS = 256
CALL_TIMEOUT = 5.0  # seconds without a reply until a connection counts as broken


@dataclasses.dataclass(frozen=True)
class Partition:
    """One partition of a queue, and the names of its keys."""

    prefix: str
    queue: str
    number: int = 0

    def key(self, kind: str) -> str:
        part = f"/{self.number}" if self.number else ""
        return f"{self.prefix}:{{{self.queue}{part}}}:{kind}"

    def keys(self, kinds: str) -> list[str]:
        return [self.key(kind) for kind in kinds.split()]


def partition_of(id_or_key: str, count: int) -> int:
    """Returns the partition for the key of a message, or for the ID of a message without a key."""
    return zlib.crc32(id_or_key.encode()) % count


class Script(NamedTuple):
    text: str
    sha: str


@functools.cache
def script(name: str) -> Script:
    """Returns a script of duestream, without its first line, which is a comment for readers."""
    file = importlib.resources.files("duestream") / "lua" / f"{name}.lua"
    text = file.read_text("utf-8").split("\n", 1)[1]
    return Script(text, hashlib.sha1(text.encode()).hexdigest())


def ask(*commands: Command) -> Steps[list[Any]]:
    """Sends commands in one round trip, and returns their replies. Raises the first error among them."""
    replies: list[Any] = yield commands
    for command, reply in zip(commands, replies):
        if isinstance(reply, Exception):
            raise classify(str(command[0]), reply)
        if command[0] == "EXEC":  # Redis goes on with a transaction after an error
            for inner in reply or []:
                if isinstance(inner, Exception):
                    raise classify("EXEC", inner)
    return replies


def evaluate(name: str, keys: Sequence[str], *args: Union[str, bytes, int]) -> Steps[Any]:
    """Calls a script, and loads it if the server does not have it."""
    code = script(name)
    rest: Command = (len(keys), *keys, *args)
    (reply,) = yield [("EVALSHA", code.sha, *rest)]
    if isinstance(reply, redis.exceptions.NoScriptError):
        (reply,) = yield [("EVAL", code.text, *rest)]
    if isinstance(reply, Exception):
        raise classify(name, reply)
    return reply


def evaluate_each(name: str, keys: Sequence[str], before: Sequence[Union[str, bytes]],
                  items: Sequence[Sequence[Union[str, bytes]]], actor: str) -> Steps[list[int]]:
    """Calls a script that answers an integer for each item. It sends the items that were not looked at (-9) again."""
    answers: list[int] = []
    while len(answers) < len(items):
        left = [value for item in items[len(answers):] for value in item]
        reply = yield from evaluate(name, keys, *before, *left, actor)
        done = reply.index(-9) if -9 in reply else len(reply)
        if not done:  # the protocol excludes it; without this check the loop would not end
            raise UnavailableError(f"{name}: the server looked at none of {len(reply)} items")
        answers += reply[:done]
    return answers


def repeat(what: Callable[[], Steps[T]], until: float, harmless: bool = False) -> Steps[T]:
    """Repeats a call after temporary errors, but not if the failed try began after until, in time.monotonic().

    If a try may have been executed although no reply came, the error is an UncertainError. If the call is harmless, the
    error is that of the last try.
    """
    pause, sent = 0.02, False
    while True:
        began = time.monotonic()
        try:
            return (yield from what())
        except UnavailableError as error:
            sent = sent or error.sent
            if began >= until:
                if sent and not harmless:
                    raise UncertainError(f"it may have been executed: {error}") from error
                raise
        yield Sleep(pause * random.uniform(0.5, 1))
        pause = min(2 * pause, 1)


def text_of(reply: Any) -> str:
    """Returns a reply as text. The text is empty if there is no reply."""
    return reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply or "")


def server_time(clock: Sequence[Any]) -> int:
    """Returns the reply to TIME as Unix ms."""
    return int(clock[0]) * 1000 + int(clock[1]) // 1000
