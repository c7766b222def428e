"""Threads for handlers that are not coroutine functions."""
from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class DaemonThreads:
    """Runs each call in an idle thread, or in a new one.

    Unlike threads of concurrent.futures, these threads do not keep a process alive, so a handler that hangs cannot.
    """

    def __init__(self, name: str) -> None:
        self._name, self._calls = name, queue.SimpleQueue[Any]()
        self._lock, self._idle = threading.Lock(), 0

    def submit(self, call: Callable[..., Any], *args: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        with self._lock:
            start = self._idle == 0
            if not start:
                self._idle -= 1
        self._calls.put((future, call, args))
        if start:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        return future

    def close(self) -> None:
        """Ends the threads, each after its call."""
        self._calls.put(None)

    def _work(self) -> None:
        while True:
            item = self._calls.get()
            if item is None:
                self._calls.put(None)  # for the next thread
                return
            future, call, args = item
            try:
                future.set_result(call(*args))
            except BaseException as error:  # the waiting task decides
                future.set_exception(error)
            with self._lock:
                self._idle += 1
            del item, future, call, args  # an idle thread keeps no message
