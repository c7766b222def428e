"""Measures the steps of a benchmark of a client in Python."""
import json
import time
from collections.abc import Callable
from typing import Any

import redis

PAYLOAD = json.dumps({"order": 42})
STEPS: dict[str, dict[str, float]] = {}


def measured(url: str, step: str, work: Callable[[], Any]) -> None:
    """Runs a step, and notes its time and the time of the server's CPU, in seconds."""
    server = redis.Redis.from_url(url)

    def cpu() -> float:
        used = server.info("cpu")
        return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])

    before, began = cpu(), time.monotonic()
    work()
    STEPS[step] = {"seconds": time.monotonic() - began, "cpu": cpu() - before}


def report(language: str, client: str) -> None:
    print(json.dumps({"language": language, "client": client, "steps": STEPS}))
