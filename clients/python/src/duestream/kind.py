"""Kinds of messages, and a mux that calls the handler of a message's kind."""
from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import inspect
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Generic, Optional, Protocol, TypeVar, Unpack, overload

from . import limits
from .delivery import DeadLetter, Handler, Message, Release, RetryAfter, Snooze
from .errors import InvalidError
from .limits import Duration
from .message import NewMessage, Options, Receipt, Result

T = TypeVar("T")

KIND_HEADER = "kind"
"""The header that names the kind of a message."""

MAX_UNKNOWN_SNOOZES = 60
"""Snoozes after which a message of an unknown kind becomes a dead letter, but not within UNKNOWN_KIND_TIME."""
UNKNOWN_KIND_TIME = 55 * 60.0
"""Seconds since a worker's first message of an unknown kind, during which it makes no dead letter of this kind."""
_MAX_UNKNOWN_KINDS = 1000


class MessageClient(Protocol):
    """The methods for messages of a Client, and of a duestream.testing.Memory."""

    def schedule(self, queue: str, payload: bytes | str = b"", **options: Unpack[Options]) -> Receipt: ...
    def send(self, queue: str, message: NewMessage) -> Receipt: ...
    def send_batch(self, queue: str, messages: Iterable[NewMessage]) -> list[Result]: ...
    def cancel(self, queue: str, id: str) -> None: ...
    def reschedule(self, queue: str, id: str, *, delay: Duration = 0, at: Optional[datetime] = None) -> datetime: ...


class AsyncMessageClient(Protocol):
    """The methods for messages of an AsyncClient, and of a duestream.testing.AsyncMemory."""

    async def schedule(self, queue: str, payload: bytes | str = b"", **options: Unpack[Options]) -> Receipt: ...
    async def send(self, queue: str, message: NewMessage) -> Receipt: ...
    async def send_batch(self, queue: str, messages: Iterable[NewMessage]) -> list[Result]: ...
    async def cancel(self, queue: str, id: str) -> None: ...
    async def reschedule(self, queue: str, id: str, *, delay: Duration = 0,
                         at: Optional[datetime] = None) -> datetime: ...


@dataclasses.dataclass(frozen=True)
class Kind(Generic[T]):
    """The messages of one purpose: their name, their queue, and the type of their payloads.

    Without encode and decode the payload is JSON. With a dataclass as type the payload is an object of its fields;
    unknown fields are ignored. A kind without a name stands for messages without the header KIND_HEADER.

    unique_by returns the values that identify the thing that a message is about, like the ID of an order. At most one
    message about the same thing is scheduled; a further one is refused with DuplicateError, or replaces it. The values
    are str, int, bool or None. They become the ID and the ordering key.
    """

    name: str
    queue: str
    type: Optional[type[T]] = None
    encode: Optional[Callable[[T], bytes]] = None
    decode: Optional[Callable[[bytes], T]] = None
    unique_by: Optional[Callable[[T], Sequence[Any]]] = None

    @overload
    def schedule(self, client: MessageClient, value: T, **options: Unpack[Options]) -> Receipt: ...

    @overload
    def schedule(self, client: AsyncMessageClient, value: T, **options: Unpack[Options]) -> Awaitable[Receipt]: ...

    def schedule(self, client: Any, value: T, **options: Unpack[Options]) -> Any:
        """Encodes a value, and sends it as Client.schedule does. With an AsyncClient, await the result."""
        return client.send(self.queue, self.message(value, **options))

    @overload
    def cancel(self, client: MessageClient, value: T) -> None: ...

    @overload
    def cancel(self, client: AsyncMessageClient, value: T) -> Awaitable[None]: ...

    def cancel(self, client: Any, value: T) -> Any:
        """Cancels the scheduled message about the same thing as a value, as Client.cancel does. It needs unique_by.

        NotScheduledError: there is none. With an AsyncClient, await the result.
        """
        return client.cancel(self.queue, self.unique_id(value))

    def message(self, value: T, **options: Unpack[Options]) -> NewMessage:
        """Returns the message that schedule sends, for Client.send_batch with the queue of the kind."""
        self.check()
        headers = dict(options.get("headers", {}))
        if KIND_HEADER in headers:
            raise InvalidError(f"header {KIND_HEADER}", headers[KIND_HEADER], "is set by the kind alone")
        if self.name:
            headers[KIND_HEADER] = self.name
        if self.unique_by is not None:
            for name, given in (("id", options.get("id")), ("key", options.get("key"))):
                if given is not None:
                    raise InvalidError(name, given, "is set by unique_by alone")
            options["id"] = options["key"] = self.unique_id(value)
        try:
            payload = self.encode(value) if self.encode is not None else _encode(value, self.type)
        except (TypeError, ValueError) as error:
            raise InvalidError("value", type(value).__name__, f"cannot be encoded: {error}") from error
        options["headers"] = headers
        return NewMessage(payload, **options)

    def unique_id(self, value: T) -> str:
        """Returns the ID of the messages about a value, for Client.cancel and Client.reschedule.

        It is the same in each language: the name, a colon, and the values as JSON, separated by commas. If this text
        cannot be an ID, the SHA-256 of the values takes their place.
        """
        if self.unique_by is None:
            raise InvalidError("kind", self.name, "has no unique_by")
        values = ",".join(_unique_text(one) for one in self.unique_by(value))
        id = f"{self.name}:{values}"
        try:
            limits.check_text("id", id)
        except InvalidError:
            id = f"{self.name}:#{hashlib.sha256(values.encode()).hexdigest()}"
        return id

    def check(self) -> None:
        """Raises InvalidError if the kind is faulty."""
        limits.check_queue(self.queue)
        check_kind_name(self.name)
        if (self.encode is None) != (self.decode is None):
            raise InvalidError("kind", self.name, "must have both encode and decode, or none")

    def value_of(self, message: Message) -> T:
        """Decodes the payload of a message. A payload that does not fit raises DeadLetter.

        decode may raise Snooze, Release or RetryAfter instead, for example while it cannot read a schema.
        """
        try:
            if self.decode is not None:
                return self.decode(message.payload)
            value: T = _decode(message.payload, self.type)
            return value
        except (DeadLetter, Snooze, Release, RetryAfter):
            raise
        except Exception as error:
            raise DeadLetter(f"the payload does not fit {kind_in_words(self.name)}: {error}") from error


class Mux:
    """Calls the handler of a message's kind:

        mux = Mux()

        @mux.handle(CLOSE_ORDER)
        def close_order(order: Order, message: Message) -> None: ...

    A handler is a function or a coroutine function of the value and the message. A message of a kind without a handler
    is snoozed for some time, because a worker of a newer release may know the kind. Then it becomes a dead letter: see
    MAX_UNKNOWN_SNOOZES. The method otherwise sets a handler for such messages.
    """

    def __init__(self) -> None:
        self._handlers: dict[tuple[str, str], Handler] = {}
        self._otherwise: Optional[Handler] = None
        self._since: dict[tuple[str, str], float] = {}  # when the first message of an unknown kind came

    def handle(self, kind: Kind[T]) -> Callable[[Callable[[T, Message], Any]], Callable[[T, Message], Any]]:
        """Returns a decorator for the handler of a kind."""
        kind.check()

        def add(handler: Callable[[T, Message], Any]) -> Callable[[T, Message], Any]:
            key = (kind.queue, kind.name)
            if key in self._handlers:
                raise InvalidError("kind", kind.name, f'has two handlers for queue "{kind.queue}"')

            async def awaited(message: Message) -> None:
                await handler(kind.value_of(message), message)

            def called(message: Message) -> None:
                handler(kind.value_of(message), message)

            self._handlers[key] = awaited if inspect.iscoroutinefunction(handler) else called
            return handler

        return add

    def otherwise(self, handler: Handler) -> Handler:
        """Sets the handler of messages whose kind has no handler in their queue. It is a decorator, too."""
        if self._otherwise is not None:
            raise InvalidError("handler of other kinds", "", "is set twice")
        self._otherwise = handler
        return handler

    def queues(self) -> list[str]:
        """Returns the queues of the kinds, in alphabetical order."""
        return sorted({queue for queue, _ in self._handlers})

    def handler_of(self, message: Message) -> Handler:
        """Returns the handler for a message."""
        return self._handlers.get((message.queue, kind_of(message))) or self._otherwise or self._unknown

    def _unknown(self, message: Message) -> None:
        name, now = kind_of(message), time.monotonic()
        try:
            check_kind_name(name)
        except InvalidError as error:
            raise DeadLetter(error) from None
        key = (message.queue, name)
        if key not in self._since and len(self._since) < _MAX_UNKNOWN_KINDS:
            self._since[key] = now
        age = now - self._since.get(key, now)
        text = message.extra.get("snoozes", "")
        snoozes = int(text) if text.isdecimal() else 0
        if snoozes >= MAX_UNKNOWN_SNOOZES and age >= UNKNOWN_KIND_TIME:
            raise DeadLetter(f'no worker of group "{message.group}" knows {kind_in_words(name)}: it was snoozed '
                             f"{snoozes} times")
        raise Snooze(2**snoozes if snoozes < 6 else 60)


def kind_of(message: Message) -> str:
    """Returns the name of a message's kind. A retry holds a name that is not UTF-8 as base64, in another field."""
    encoded = message.extra.get(f"b64:h:{KIND_HEADER}")
    if KIND_HEADER in message.headers or encoded is None:
        return message.headers.get(KIND_HEADER, "")
    try:
        return base64.b64decode(encoded).decode(errors="replace")
    except binascii.Error:
        return encoded


def kind_in_words(name: str) -> str:
    return f'kind "{name}"' if name else "messages without a kind"


def check_kind_name(name: str) -> None:
    if name:
        limits.check_text("kind", name, 128)


def _encode(value: Any, of: Optional[type[Any]]) -> bytes:
    if value is None and of is not None:
        raise ValueError("it is null in JSON")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


_PLAIN_TYPES: dict[str, tuple[type[Any], ...]] = {"int": (int,), "str": (str,), "bool": (bool,), "float": (int, float)}


def _decode(payload: bytes, of: Optional[type[Any]]) -> Any:
    value = json.loads(payload)
    if of is None:
        return value
    if not dataclasses.is_dataclass(of):
        if not isinstance(value, of) or isinstance(value, bool) and of is not bool:
            raise ValueError(f"{type(value).__name__} is no {of.__name__}")
        return value
    if not isinstance(value, dict):
        raise ValueError(f"{type(value).__name__} is no {of.__name__}")
    known = {}
    for field in dataclasses.fields(of):
        if field.name not in value:
            continue
        one = known[field.name] = value[field.name]
        name = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", "")
        wanted = _PLAIN_TYPES.get(name)
        if wanted is not None and (not isinstance(one, wanted) or isinstance(one, bool) and name != "bool"):
            raise ValueError(f'field "{field.name}": {type(one).__name__} is no {name}')
    return of(**known)


def _unique_text(value: Any) -> str:
    """Returns a value as JSON, with the same bytes as in Go."""
    if not isinstance(value, (str, int, bool, type(None))):
        raise InvalidError("unique by", type(value).__name__, "must be str, int, bool or None")
    if isinstance(value, str):
        limits.utf8_bytes("unique by", value)
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
