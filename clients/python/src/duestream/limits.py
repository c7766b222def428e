"""The limits of arguments (docs/reference/protocol.md, section 13), durations and points in time."""
from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Union
from urllib.parse import quote

from .errors import InvalidError

Duration = Union[timedelta, int, float]
"""A time span: a timedelta, or seconds."""

MAX_PAYLOAD_BYTES = 16 << 20
MAX_BATCH = 100_000
MAX_ATTEMPTS = 1_000_000
TEN_YEARS_MS = 10 * 365 * 24 * 3600 * 1000
MAX_DELAYS = 100
MAX_RESULT_BYTES = 64 << 10
MAX_PROGRESS_BYTES = 4 << 10

_QUEUE = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_PREFIX = re.compile(r"[A-Za-z0-9._:/-]{1,128}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_queue(name: str) -> None:
    if not _QUEUE.fullmatch(name):
        raise InvalidError("queue", name, "must be 1 to 128 characters of A-Z a-z 0-9 . _ : -")


def check_prefix(prefix: str) -> None:
    if not _PREFIX.fullmatch(prefix):
        raise InvalidError("prefix", prefix, "must be 1 to 128 characters of A-Z a-z 0-9 . _ : / -")


def check_text(field: str, value: str, most: int = 256) -> None:
    """Refuses names that are empty, too long, not UTF-8, or hold control characters."""
    if not value:
        raise InvalidError(field, value, "must not be empty")
    if utf8_bytes(field, value) > most:
        raise InvalidError(field, value, f"must be at most {most} bytes")
    if _CONTROL.search(value):
        raise InvalidError(field, value, "must not hold control characters")


def utf8_bytes(field: str, value: str) -> int:
    """Returns the length of a text in UTF-8. It refuses half of a surrogate pair, which has no form in UTF-8."""
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        raise InvalidError(field, ascii(value), "must be UTF-8") from None


def check_payload(payload: bytes, most: int = MAX_PAYLOAD_BYTES) -> None:
    if len(payload) > most:
        raise InvalidError("payload", f"of {len(payload)} bytes", f"must be at most {most} bytes")


def check_headers(headers: Mapping[str, str]) -> None:
    if len(headers) > 64:
        raise InvalidError("headers", len(headers), "must be at most 64")
    total = 0
    for name, value in headers.items():
        check_text("header name", name, 128)
        size = utf8_bytes(f"header {name}", value)
        if size > 8 << 10:
            raise InvalidError(f"header {name}", value, "must be at most 8192 bytes")
        total += len(name.encode()) + size
    if total > 32 << 10:
        raise InvalidError("headers", f"{total} bytes", "must be at most 32768 bytes together")


def check_between(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidError(field, value, f"must be between {least} and {most}")


def millis(field: str, value: Duration, least: int = 0, most: int = TEN_YEARS_MS) -> int:
    """Returns a duration in ms, rounded up. The limits are in ms."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not math.isfinite(seconds):
        raise InvalidError(field, seconds, "must be a number of seconds")
    ms = math.ceil(round(seconds * 1000, 3))
    if not least <= ms <= most:
        limit = "3650 days (ten years)" if most == TEN_YEARS_MS else f"{most / 1000:g} s"
        raise InvalidError(field, f"{seconds:g} s", f"must be between {least / 1000:g} s and {limit}")
    return ms


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def unix_millis(field: str, at: datetime) -> int:
    """Returns a point in time as Unix ms, rounded up."""
    if at.tzinfo is None:
        raise InvalidError(field, at.isoformat(), "must have a time zone, like datetime.now(timezone.utc)")
    ms = -((_EPOCH - at) // timedelta(milliseconds=1))
    if not 10**12 <= ms <= 10**13:
        raise InvalidError(field, at.isoformat(), "must be between 2001-09-09 and 2286-11-20")
    return ms


def from_unix_millis(ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=ms)


def percent(name: str) -> str:
    """Percent-encodes the name of a group for names of keys and settings: all bytes but A-Z a-z 0-9 - _ . ~"""
    return quote(name, safe="")


def cut_text(text: str) -> str:
    """Cuts an error text to 1 KiB of UTF-8, which an entry holds at most."""
    return text.encode(errors="replace")[:1024].decode(errors="ignore")
