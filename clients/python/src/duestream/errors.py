"""The errors of the package, and how errors of Redis become them."""
from __future__ import annotations

import ssl

import redis


class DuestreamError(Exception):
    """The base of all errors of this package."""


class InvalidError(DuestreamError, ValueError):
    """An argument was refused before Redis was asked. It names the field, the value and the rule."""

    def __init__(self, field: str, value: object, rule: str) -> None:
        text = value if isinstance(value, str) else repr(value)
        if len(text) > 64:
            text = f"{text[:64]}… ({len(text)} characters)"
        super().__init__(f'{field} "{text}": {rule}')
        self.field, self.value, self.rule = field, value, rule


class DuplicateError(DuestreamError):
    """The ID is scheduled already, or its dedup window has not ended. Nothing was stored."""


class NotScheduledError(DuestreamError):
    """The message became ready, was cancelled, or never was scheduled."""


class FullError(DuestreamError):
    """Redis is at maxmemory and refused the message. Nothing was stored."""


class UnavailableError(DuestreamError):
    """Redis could not be reached, or refused the call for now, until retry_timeout had passed.

    sent tells whether a call may have reached the server before its connection broke.
    """

    sent = False


class UncertainError(UnavailableError):
    """A call was sent, and no reply came until retry_timeout had passed: it may have been executed."""

    sent = True


class ClosedError(DuestreamError):
    """The client has been closed."""


class DeniedError(DuestreamError):
    """The ACL user may not run a command, or the password is wrong."""


class UntrustedError(DuestreamError):
    """No TLS connection could be made."""


class UnsupportedError(DuestreamError):
    """The server is too old, or this package does not support the combination that was asked for."""


class OldBridgeError(DuestreamError):
    """A bridge of an earlier release is alive that does not serve the feature. Nothing was written."""


class WrongTypeError(DuestreamError):
    """A key of the queue holds a value of another Redis type."""


class NoGroupError(DuestreamError):
    """The consumer group or its stream is gone."""


class NoRecurrenceError(DuestreamError):
    """The queue has no recurrence of that name."""


class NoResultError(DuestreamError):
    """The message has no result, or none yet."""


class AbandonedError(DuestreamError):
    """A worker stopped although handlers were still running, because they did not stop when they were told to."""


class LostError(DuestreamError):
    """The delivery was given to another worker: the result of the handler has no effect."""


class UnreachableError(DuestreamError):
    """The delivery could not be extended for a visibility timeout, so another worker may have it."""


class CancelledError(DuestreamError):
    """The message was cancelled: the group is done with it, whatever the handler does."""


class StoppingError(DuestreamError):
    """The worker stops, and its shutdown_timeout has passed."""


class HandlerTimeoutError(DuestreamError):
    """The handler ran longer than its message, the policy or the worker allows."""


# Errors that redis-py, or its asyncio streams, may raise when a server does not answer.
CONNECTION_ERRORS = (redis.RedisError, OSError, EOFError)

# By the text at the beginning of an error of the server.
_SERVER_ERRORS: tuple[tuple[str, type[DuestreamError]], ...] = (
    ("OOM", FullError),
    ("WRONGTYPE", WrongTypeError),
    ("NOGROUP", NoGroupError),
    ("UNBLOCKED", NoGroupError),  # before Redis 7.2, when the stream vanishes during a read
    ("NOPERM", DeniedError), ("NOAUTH", DeniedError), ("WRONGPASS", DeniedError),
    ("The user executing the script can't", DeniedError), ("ACL failure in script", DeniedError),
    ("unknown command", UnsupportedError), ("CROSSSLOT", UnsupportedError),
    ("LOADING", UnavailableError), ("BUSY ", UnavailableError), ("READONLY", UnavailableError),
    ("NOREPLICAS", UnavailableError), ("MISCONF", UnavailableError), ("CLUSTERDOWN", UnavailableError),
    ("TRYAGAIN", UnavailableError), ("MASTERDOWN", UnavailableError), ("UNKILLABLE", UnavailableError),
)

# By the class that redis-py gives to an error of the server. It removes the code from the text of such an error.
_SERVER_CLASSES: tuple[tuple[type[Exception], type[DuestreamError]], ...] = (
    (redis.exceptions.NoPermissionError, DeniedError),
    (redis.exceptions.AuthenticationError, DeniedError),
    (redis.exceptions.BusyLoadingError, UnavailableError),
    (redis.exceptions.ReadOnlyError, UnavailableError),
)


def classify(what: str, error: BaseException) -> DuestreamError:
    """Returns the error of this package for an error of redis-py. what names the command."""
    if isinstance(error, DuestreamError):
        return error
    text = f"{what}: {error}"
    if isinstance(error, redis.exceptions.AskError):  # also MovedError
        return UnsupportedError(f"{text}: the server is a node of a cluster, and this package connects to one server")
    for of_redis, ours in _SERVER_CLASSES:
        if isinstance(error, of_redis):
            return ours(text)
    if isinstance(error, redis.ResponseError):
        said = str(error).removeprefix("ERR ")
        for beginning, ours in _SERVER_ERRORS:
            if said.startswith(beginning):
                return ours(text)
        for code, ours in _SERVER_ERRORS:  # some servers put words of their own before the code
            if code in said:
                return ours(text)
        return DuestreamError(text)
    if isinstance(error.__context__, ssl.SSLError) or isinstance(error, ssl.SSLError):
        return UntrustedError(text)
    unavailable = UnavailableError(text)
    unavailable.sent = "connecting to" not in str(error)  # redis-py: "Error 111 connecting to …"
    return unavailable
