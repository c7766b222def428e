#!/usr/bin/env python3
"""A duestream worker in Python: redis-py 4 or later (Debian: python3-redis).

    QUEUE=emails GROUP=billing python3 worker.py

Put your work into handle(), or use Worker in your own program. When the handler returns, the message is acknowledged. When it raises, the
message has failed and is delivered again. Each acknowledged message prints one line: ID, attempt. SIGTERM and SIGINT stop the worker after the
current message.

With the functions library (duestream functions load), a failed message comes back after the backoff of the policy, Retry and DeadLetter have
their effect, and messages that were read but not begun are released on a stop. Without it, a failed message comes back after the visibility
timeout.

DUESTREAM_REDIS_URL  default redis://127.0.0.1:6379         DUESTREAM_PREFIX  default duestream
QUEUE, GROUP         required                               CONSUMER          default host-process
BATCH                messages held at the same time, per partition; default 100
ACK_LOG              file that gets "ID attempt entry" after each acknowledgement
FAIL_ONCE_PERCENT    this share of first attempts fails, to show that messages come back; default 0
"""
import os
import random
import signal
import socket
import sys
import threading
import time

import redis

from duestream import Queue, connect

FAIL_ONCE_PERCENT = float(os.environ.get("FAIL_ONCE_PERCENT", "0"))


def handle(message):
    """Does the work of one message. A message may be delivered again, so doing the work twice must be harmless."""
    if message.attempt == 1 and random.random() * 100 < FAIL_ONCE_PERCENT:
        raise RuntimeError("failing once, as asked")


class Retry(Exception):
    """A handler raises this to have the message delivered again after delay_ms."""
    def __init__(self, error, delay_ms):
        super().__init__(error)
        self.delay_ms = delay_ms


class DeadLetter(Exception):
    """A handler raises this when another attempt will not help."""


class Message:
    def __init__(self, entry, fields):
        text = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in fields.items() if name != b"payload"}
        self.entry, self.payload = entry, fields.get(b"payload", b"")
        self.raw_id, self.recipient = fields.get(b"id", entry), fields.get(b"for", b"")
        self.id = self.raw_id.decode(errors="replace")
        self.attempt = int(text["attempt"]) if text.get("attempt", "").isdecimal() else 1
        self.headers = {name[2:]: value for name, value in text.items() if name.startswith("h:")}
        self.lost = threading.Event()  # set when the message was given to another worker: long work should stop then


class Worker:
    """Calls handler(message) for the messages of a group, one at a time per partition. Each partition has its own thread."""

    def __init__(self, client, queue, group, handler, consumer=None, batch=100, acknowledged=None):
        self.client, self.queue, self.group, self.handler, self.batch = client, Queue(client, queue), group, handler, batch
        self.consumer = consumer or f"{socket.gethostname()}-{os.getpid()}"
        self.acknowledged = acknowledged or (lambda message: None)
        self.stopping, self.ended = threading.Event(), threading.Event()
        self.policy = None
        self.held, self.lock = {}, threading.Lock()  # by partition and entry: the messages that were delivered and not settled

    def stop(self):
        self.stopping.set()

    def run(self):
        """Works until stop() is called, and then finishes the current messages."""
        self.insist(self.read_policy)
        if self.policy is None:
            return
        extender = threading.Thread(target=self.extend_forever)
        extender.start()
        readers = []
        while not self.stopping.is_set():
            try:
                count = self.queue.partitions()
            except redis.RedisError as err:
                self.say(err)
                count = max(self.queue.counts)
            for partition in range(len(readers), count):
                readers.append(threading.Thread(target=self.read_forever, args=(partition,)))
                readers[-1].start()
            self.stopping.wait(5)
        for reader in readers:
            reader.join()
        self.ended.set()
        extender.join()

    def read_forever(self, partition):
        stream, after, delay = self.queue.key("stream", partition), ">", 0.1
        # a bridge takes back the entries that were read before this worker started
        start = self.insist(self.last_delivered, stream)
        while not self.stopping.is_set():
            try:
                reply = self.client.xreadgroup(self.group, self.consumer, {stream: after}, count=self.batch, block=2000)
                entries = reply[0][1] if reply else []
                if after != ">":
                    after = entries[-1][0] if entries else ">"
                self.work(partition, [Message(entry, fields) for entry, fields in entries if fields])
                delay = 0.1
            except redis.ResponseError as err:
                # A lost group is always created again at 0. Before 7.2, a key that is deleted during a blocked read gives UNBLOCKED.
                if str(err).startswith(("NOGROUP", "UNBLOCKED")):
                    self.insist(self.create_group, stream)
                    start = "0-0"
                else:
                    delay = self.pause(err, delay)
            except redis.RedisError as err:
                delay = self.pause(err, delay)
                # The entries of a lost reply are pending: read them again. Without the library, failed messages are pending too, and must wait.
                after = ">" if self.queue.plain else start or ">"

    def last_delivered(self, stream):
        if self.queue.fcall("version", []) is None:
            return None  # without the library no entry is read again, and the user may lack permission for XINFO
        try:
            groups = self.client.xinfo_groups(stream)
        except redis.ResponseError as err:
            if "no such key" not in str(err):
                raise
            groups = []
        return next((group["last-delivered-id"] for group in groups if group["name"] == self.group.encode()), "0-0")

    def create_group(self, stream):
        try:
            self.client.xgroup_create(stream, self.group, id="0", mkstream=True)
        except redis.ResponseError as err:
            if not str(err).startswith("BUSYGROUP"):
                raise

    def work(self, partition, messages):
        with self.lock:
            self.held[partition] = {m.entry: m for m in messages}
        done, since = [], time.monotonic()
        for m in messages:
            if self.stopping.is_set():
                break
            if m.lost.is_set() or not self.finish(partition, m):
                self.let_go(partition, [m])
                continue
            done.append(m)
            # acknowledge messages together while they are fast, and after a slow one at once
            if time.monotonic() - since > 0.01:
                self.acknowledge(partition, done)
                done, since = [], time.monotonic()
        self.acknowledge(partition, done)
        with self.lock:
            left = [value for m in self.held[partition].values() for value in (m.entry, m.raw_id)]
        if left:
            self.insist(self.leave, "release", partition, left)
            self.let_go(partition, messages)

    def finish(self, partition, m):
        """Returns whether the message is done. False means that its attempt has failed."""
        if m.recipient not in (b"", self.group.encode()):
            return True  # a retry for another group: acknowledged, and that is all
        try:
            self.handler(m)
            return True
        except Exception as err:  # pylint: disable=broad-except
            failure = err
        self.say(f"{m.id!r}, attempt {m.attempt}: {failure}")
        text = str(failure).encode()[:1024].decode(errors="ignore")
        if isinstance(failure, DeadLetter):
            self.insist(self.leave, "dead_letter", partition, [m.entry, m.raw_id, text])
        else:
            delay = failure.delay_ms if isinstance(failure, Retry) else ""  # "" = the delay of the policy
            how = [m.entry, m.raw_id, "retry", delay, "max_attempts", text]
            self.insist(self.leave, "retry", partition, [self.limits(), self.delays(), *how])
        return False

    def leave(self, script, partition, args):
        """Takes entries out of the pending list with a script. Without the library, they stay there until the visibility timeout."""
        keys = self.queue.keys("stream due payload meta dead wake turns policy history", partition)
        try:
            self.queue.fcall(script, keys, self.group, *args, f"worker {self.consumer}")
        except redis.ResponseError as err:
            if " was given " not in str(err):
                raise
            self.queue.fcall(script, keys[:6], self.group, *args)  # a library of an earlier release

    def limits(self):
        """Returns the limit of attempts, and the limit of a message's age if the policy has one."""
        limit = self.policy["retry_for_ms"]
        return f"{self.policy['max_attempts']}{f' retry_for_ms={limit}' if limit else ''}"

    def delays(self):
        """Returns the delays after failed attempts.

        They are the policy's list, or for the n-th retry_min × 2^(n-1) × 0.5 to 1.5, and at most retry_max."""
        if self.policy["retry_delays_ms"] != "0":
            return self.policy["retry_delays_ms"]
        least, most = self.policy["retry_min_ms"], max(self.policy["retry_min_ms"], self.policy["retry_max_ms"])
        steps = [least]
        while steps[-1] < most:
            steps.append(2 * steps[-1])
        return ",".join(str(max(1, min(most, round(step * random.uniform(0.5, 1.5))))) for step in steps)

    def acknowledge(self, partition, done):
        for m, won in zip(done, self.insist(self.ack, self.queue.key("stream", partition), done) or [] if done else []):
            if won and m.recipient in (b"", self.group.encode()):
                self.acknowledged(m)
        self.let_go(partition, done)

    def ack(self, stream, done):
        replies = self.queue.fcall("ack", [stream], self.group, *(value for m in done for value in (m.entry, m.raw_id)))
        if replies is None:
            pipe = self.client.pipeline(transaction=False)
            for m in done:
                pipe.xack(stream, self.group, m.entry)
            replies = pipe.execute()
        return replies

    def let_go(self, partition, messages):
        with self.lock:
            for m in messages:
                self.held[partition].pop(m.entry, None)

    def extend_forever(self):
        """Restarts the visibility timeout of all held messages whenever a third of it has passed."""
        while not self.ended.wait(min(self.policy["visibility_ms"] / 3000, 5)):
            try:
                with self.lock:
                    held = [(partition, list(entries.values())) for partition, entries in self.held.items() if entries]
                for partition, messages in held:
                    for m, extended in zip(messages, self.extend(partition, messages)):
                        if not extended:
                            m.lost.set()
                self.read_policy()
            except redis.RedisError as err:
                self.say(f"extend: {err}")

    def extend(self, partition, messages):
        stream, dead = self.queue.keys("stream dead", partition)
        replies = self.queue.fcall("extend", [stream, dead], self.group, self.consumer, *(value for m in messages for value in (m.entry, m.raw_id)))
        if replies is None:
            still = self.client.xclaim(stream, self.group, self.consumer, min_idle_time=0, message_ids=[m.entry for m in messages], justid=True)
            replies = [m.entry in still for m in messages]
        return replies

    def read_policy(self):
        self.policy = self.queue.policy(self.group)

    def insist(self, call, *args):
        """Repeats a call until Redis answers. The call must be harmless to repeat. Returns None if the worker has to stop before that."""
        delay = 0.1
        while True:
            try:
                return call(*args)
            except redis.RedisError as err:
                if self.stopping.is_set():
                    return None
                delay = self.pause(err, delay)

    def pause(self, err, delay):
        self.say(err)
        self.stopping.wait(delay * random.uniform(0.5, 1))
        return min(2 * delay, 5)

    @staticmethod
    def say(what):
        print(f"worker.py: {what}\n", end="", file=sys.stderr, flush=True)


def run_until_signal(worker):
    """Runs a worker until SIGTERM or SIGINT."""
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # in all threads, because only this thread waits for signals
    thread = threading.Thread(target=worker.run)
    thread.start()
    signal.sigwait(signals)
    worker.stop()
    thread.join()


def main():
    try:
        queue, group = os.environ["QUEUE"], os.environ["GROUP"]
    except KeyError as missing:
        sys.exit(f"worker.py: set {missing.args[0]}; see the beginning of this file")
    log = open(os.environ["ACK_LOG"], "a", buffering=1, encoding="utf-8") if "ACK_LOG" in os.environ else None

    def acknowledged(message):
        print(f"{message.id} {message.attempt}\n", end="", flush=True)
        if log:
            log.write(f"{message.id} {message.attempt} {message.entry.decode()}\n")

    run_until_signal(Worker(connect(), queue, group, handle, os.environ.get("CONSUMER"), int(os.environ.get("BATCH", "100")), acknowledged))


if __name__ == "__main__":
    main()
