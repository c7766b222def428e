#!/usr/bin/env python3
"""A duestream worker in Python: redis-py 4 (Debian: python3-redis) and the commands XREADGROUP, XACK and XCLAIM.

    QUEUE=emails GROUP=billing python3 worker.py

Put your work into handle(): returning acknowledges the message; raising leaves it pending, and it is delivered again after the
visibility timeout. Each acknowledged message prints one line: ID, attempt. SIGTERM and SIGINT stop after the batch in hand.

DUESTREAM_REDIS_URL  default redis://127.0.0.1:6379         DUESTREAM_PREFIX  default duestream
QUEUE, GROUP         required                               CONSUMER          default host-process
BATCH                messages held at once; default 100
ACK_LOG              file that gets "ID attempt entry" after each acknowledgement
FAIL_ONCE_PERCENT    this share of first attempts raises, to show that they come back; default 0
"""
import os
import random
import signal
import socket
import sys
import threading
import time
from urllib.parse import quote

import redis

PREFIX = os.environ.get("DUESTREAM_PREFIX", "duestream")
FAIL_ONCE_PERCENT = float(os.environ.get("FAIL_ONCE_PERCENT", "0"))


def handle(message_id, payload, fields):
    """Does the work of one message. It may be delivered again: make it harmless to do twice."""
    if fields.get(b"attempt", b"1") == b"1" and random.random() * 100 < FAIL_ONCE_PERCENT:
        raise RuntimeError("failing once, as asked")


class Worker:
    def __init__(self, client, queue, group, consumer, batch, log):
        self.client, self.queue, self.group, self.consumer, self.batch, self.log = client, queue, group, consumer, batch, log
        self.stream = f"{PREFIX}:{{{queue}}}:stream"
        self.stopping = threading.Event()
        self.held, self.lock = set(), threading.Lock()  # entries whose visibility timeout must not run out

    def run(self):
        extender = threading.Thread(target=self.extend_forever, daemon=True)
        extender.start()
        joined = False
        while not self.stopping.is_set():
            try:
                if not joined:
                    self.join()
                    joined = True
                self.one_batch()
            except redis.ResponseError as err:
                # A group that was lost is created again at 0, every time. Before 7.2 a key deleted under a blocked read says UNBLOCKED.
                joined = False
                if not str(err).startswith(("NOGROUP", "UNBLOCKED")):
                    self.pause(err)
            except redis.RedisError as err:
                self.pause(err)
        self.stopping.set()
        extender.join()

    def join(self):
        if self.client.hsetnx(f"{PREFIX}:queues", self.queue, "1"):  # the bridges do not know the queue yet
            self.client.xadd(f"{PREFIX}:wake", {"queues": 1}, maxlen=1, approximate=False)
        try:
            self.client.xgroup_create(self.stream, self.group, id="0", mkstream=True)
        except redis.ResponseError as err:
            if not str(err).startswith("BUSYGROUP"):
                raise

    def pause(self, err):
        print(f"worker.py: {err}", file=sys.stderr, flush=True)
        self.stopping.wait(1)

    def one_batch(self):
        reply = self.client.xreadgroup(self.group, self.consumer, {self.stream: ">"}, count=self.batch, block=2000)
        entries = reply[0][1] if reply else []
        with self.lock:
            self.held.update(entry for entry, fields in entries)
        done = []
        for entry, fields in entries:
            if self.finished(entry, fields):
                done.append((entry, fields))
            else:
                with self.lock:
                    self.held.discard(entry)
        self.acknowledge(done)

    def finished(self, entry, fields):
        if fields.get(b"for", self.group.encode()) != self.group.encode():
            return True  # a retry for another group: acknowledged, and that is all
        try:
            handle(fields.get(b"id", entry), fields.get(b"payload", b""), fields)
            return True
        except Exception as err:  # pylint: disable=broad-except
            print(f"worker.py: {fields.get(b'id', entry)!r}: {err}", file=sys.stderr, flush=True)
            return False

    def acknowledge(self, done):
        while done:
            try:
                pipe = self.client.pipeline(transaction=False)
                for entry, _ in done:
                    pipe.xack(self.stream, self.group, entry)
                replies = pipe.execute()
                break
            except redis.RedisError as err:
                if self.stopping.is_set():
                    return
                self.pause(err)  # then once more: acknowledging twice is harmless
        with self.lock:
            self.held.difference_update(entry for entry, _ in done)
        for (entry, fields), won in zip(done, replies if done else []):
            if won and fields.get(b"for", self.group.encode()) == self.group.encode():
                line = b"%s %s" % (fields.get(b"id", entry), fields.get(b"attempt", b"1"))
                sys.stdout.buffer.write(line + b"\n")
                if self.log:
                    self.log.write(b"%s %s\n" % (line, entry))
        sys.stdout.buffer.flush()

    def extend_forever(self):
        """Starts the visibility timeout of everything held anew, at a third of it."""
        while not self.stopping.wait(self.visibility() / 3):
            with self.lock:
                held = list(self.held)
            try:
                if held:
                    self.client.xclaim(self.stream, self.group, self.consumer, min_idle_time=0, message_ids=held, justid=True)
            except redis.RedisError as err:
                print(f"worker.py: extend: {err}", file=sys.stderr, flush=True)

    def visibility(self):
        """The visibility timeout in seconds: the group's own setting, the queue's, the defaults', or 30."""
        group = f"group:{quote(self.group, safe='')}:visibility_ms"
        try:
            values = self.client.hmget(f"{PREFIX}:{{{self.queue}}}:policy", group, "visibility_ms")
            values.append(self.client.hget(f"{PREFIX}:defaults", "visibility_ms"))
        except redis.RedisError:
            values = []
        return next((int(v) for v in values if v and v.isdigit()), 30000) / 1000


def main():
    url = os.environ.get("DUESTREAM_REDIS_URL", "redis://127.0.0.1:6379")
    path = os.environ.get("ACK_LOG")
    try:
        queue, group = os.environ["QUEUE"], os.environ["GROUP"]
    except KeyError as missing:
        sys.exit(f"worker.py: set {missing.args[0]}; see the beginning of this file")
    worker = Worker(
        redis.Redis.from_url(url, socket_timeout=10),
        queue, group, os.environ.get("CONSUMER", f"{socket.gethostname()}-{os.getpid()}"),
        int(os.environ.get("BATCH", "100")), open(path, "ab", buffering=0) if path else None)
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: worker.stopping.set())
    worker.run()


if __name__ == "__main__":
    main()
