"""duestream: messages that are delivered at their due time, at least once, through Redis Streams."""
from .client import AsyncClient, Client
from .delivery import DeadLetter, Message, Release, RetryAfter, Settlement, Snooze
from .errors import (AbandonedError, CancelledError, ClosedError, DeniedError, DuestreamError, DuplicateError,
                     FullError, HandlerTimeoutError, InvalidError, LostError, NoGroupError, NoRecurrenceError,
                     NoResultError, NotScheduledError, OldBridgeError, StoppingError, UnavailableError, UncertainError,
                     UnreachableError, UnsupportedError, UntrustedError, WrongTypeError)
from .kind import AsyncMessageClient, Kind, MessageClient, Mux
from .message import MessageResult, NewMessage, Receipt, Result
from .policy import Policy
from .recurrence import Recurrence
from .worker import Worker

__all__ = [
    "AbandonedError", "AsyncClient", "AsyncMessageClient", "CancelledError", "Client", "ClosedError", "DeadLetter",
    "DeniedError", "DuestreamError", "DuplicateError", "FullError", "HandlerTimeoutError", "InvalidError", "Kind",
    "LostError", "Message", "MessageClient", "MessageResult", "Mux", "NewMessage", "NoGroupError",
    "NoRecurrenceError", "NoResultError", "NotScheduledError", "OldBridgeError", "Policy", "Receipt", "Recurrence",
    "Release", "Result", "RetryAfter", "Settlement", "Snooze", "StoppingError", "UnavailableError",
    "UncertainError", "UnreachableError", "UnsupportedError", "UntrustedError", "Worker", "WrongTypeError",
]
__version__ = "0.1.0"
