"""The settings of a queue and a group, as Redis stores them."""
from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Mapping
from typing import Optional

from .limits import MAX_ATTEMPTS, MAX_DELAYS, TEN_YEARS_MS, percent

_WEEK_MS = 7 * 24 * 3600 * 1000


@dataclasses.dataclass(frozen=True)
class Policy:
    """The settings of a policy that a worker needs. The default values are those of duestream."""

    visibility_ms: int = 30_000
    max_attempts: int = 40
    retry_min_ms: int = 1000
    retry_max_ms: int = 3_600_000
    retry_delays_ms: tuple[int, ...] = ()
    retry_for_ms: int = 0
    max_snoozes: int = 0
    handler_timeout_ms: int = 0
    held_workers: bool = False

    @classmethod
    def parse(cls, own: Mapping[str, str], defaults: Mapping[str, str], group: str) -> "Policy":
        """Returns the settings for a group: its own, else those of the queue, else the defaults."""
        beginning = f"group:{percent(group)}:"
        found: dict[str, int] = {}
        for name, (least, most) in _LIMITS.items():
            for text in (own.get(beginning + name), own.get(name), defaults.get(name)):
                if text is not None and re.fullmatch("[0-9]{1,15}", text) and least <= int(text) <= most:
                    found[name] = int(text)
                    break
        delays: tuple[int, ...] = ()
        name = "retry_delays_ms"
        for text in (own.get(beginning + name), own.get(name), defaults.get(name)):
            if text == "0":
                break
            parsed = parse_delays(text)
            if parsed is not None:
                delays = parsed
                break
        return cls(**found, retry_delays_ms=delays, held_workers=own.get("held_workers") == "1")

    def attempts(self) -> str:
        """Returns the argument max_attempts of the script retry, with the limits of age and of snoozes."""
        text = str(self.max_attempts)
        if self.retry_for_ms:
            text += f" retry_for_ms={self.retry_for_ms}"
        if self.max_snoozes:
            text += f" max_snoozes={self.max_snoozes}"
        return text

    def delays(self) -> str:
        """Returns the argument delays of the script retry: the list, or doubling delays, each with a random factor."""
        if self.retry_delays_ms:
            return ",".join(map(str, self.retry_delays_ms))
        most = max(self.retry_min_ms, self.retry_max_ms)
        steps = [self.retry_min_ms]
        while steps[-1] < most:
            steps.append(2 * steps[-1])
        return ",".join(str(max(1, min(most, round(min(step, most) * random.uniform(0.5, 1.5))))) for step in steps)


_LIMITS = {
    "visibility_ms": (100, _WEEK_MS), "max_attempts": (1, MAX_ATTEMPTS), "retry_min_ms": (1, TEN_YEARS_MS),
    "retry_max_ms": (1, TEN_YEARS_MS), "retry_for_ms": (0, TEN_YEARS_MS), "max_snoozes": (0, MAX_ATTEMPTS),
    "handler_timeout_ms": (0, TEN_YEARS_MS),
}


def parse_delays(text: Optional[str]) -> Optional[tuple[int, ...]]:
    """Returns a list of delays in ms, or None if the text is not a valid list."""
    if text is None or not re.fullmatch("[0-9]{1,15}(,[0-9]{1,15})*", text):
        return None
    delays = tuple(map(int, text.split(",")))
    if len(delays) > MAX_DELAYS or not all(1 <= delay <= TEN_YEARS_MS for delay in delays):
        return None
    return delays
