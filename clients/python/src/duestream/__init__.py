"""duestream: messages that are delivered at their due time, at least once, through Redis Streams."""
from .client import AsyncClient, Client
from .errors import (AbandonedError, CancelledError, ClosedError, DeniedError, DuestreamError, DuplicateError,
                     FullError, HandlerTimeoutError, InvalidError, LostError, NoGroupError, NoRecurrenceError,
                     NotScheduledError, OldBridgeError, StoppingError, UnavailableError, UncertainError,
                     UnreachableError, UnsupportedError, UntrustedError, WrongTypeError)
from .message import NewMessage, Receipt, Result
from .recurrence import Recurrence

__all__ = [
    "AbandonedError", "AsyncClient", "CancelledError", "Client", "ClosedError", "DeniedError", "DuestreamError",
    "DuplicateError", "FullError", "HandlerTimeoutError", "InvalidError", "LostError", "NewMessage", "NoGroupError",
    "NoRecurrenceError", "NotScheduledError", "OldBridgeError", "Receipt", "Recurrence", "Result", "StoppingError",
    "UnavailableError", "UncertainError", "UnreachableError", "UnsupportedError", "UntrustedError", "WrongTypeError",
]
__version__ = "0.1.0"
