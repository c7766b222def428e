#!/usr/bin/env python3
"""Schedules messages from Python: redis-py 4 or later (Debian: python3-redis).

    python3 producer.py emails order-42 --in 900 --payload 'close the order' --header kind=order
    printf 'one\ntwo\n' | python3 producer.py emails --in 5      one message per line, each with a new ID

If a message with this ID is still scheduled, the ID is refused where the functions library is loaded (duestream functions load). Otherwise
the new message replaces it. DUESTREAM_REDIS_URL and DUESTREAM_PREFIX are as for worker.py.
"""
import argparse
import dataclasses
import json
import sys
import time
import uuid
import zlib

import redis

from duestream import Queue, connect


@dataclasses.dataclass
class Message:
    id: str
    due_ms: int  # Unix time by the server's clock
    payload: bytes = b""
    headers: dict = dataclasses.field(default_factory=dict)
    max_attempts: int = None
    expires_ms: int = None
    dedup_ms: int = 0  # how long the ID is refused, even after the delivery; only with the functions library

    def meta(self):
        """Returns a JSON object of strings, or an empty string if there are no fields."""
        fields = {"h:" + name: value for name, value in self.headers.items()}
        fields.update({name: str(getattr(self, name)) for name in ("max_attempts", "expires_ms") if getattr(self, name) is not None})
        return json.dumps(fields, ensure_ascii=False) if fields else ""


class Producer:
    def __init__(self, client, queue, patience=15):
        self.client, self.queue, self.patience = client, Queue(client, queue), patience
        self.done = {}  # by partition: the token of the last call whose reply arrived

    def schedule(self, messages):
        """Schedules messages: either all messages of a partition or none.

        Returns the IDs that were refused because the queue knows them already. A call that fails because the connection
        broke is repeated for `patience` seconds. Any other error, such as OOM of a full server, is raised."""
        refused = []
        count = self.repeatedly(self.queue.partitions)
        parts = {}
        for m in messages:
            parts.setdefault(zlib.crc32(m.id.encode()) % count, []).append(m)
        for partition, part in parts.items():
            token = uuid.uuid4().hex  # with it, the script recognizes a repeated call
            refused += self.repeatedly(self.send, partition, part, token)
        return refused

    def send(self, partition, messages, token):
        args = [value for m in messages for value in (m.id, m.due_ms, m.payload, m.meta(), m.dedup_ms)]
        reply = self.queue.fcall("schedule", self.queue.keys("due payload meta stream wake seen policy", partition),
                                 token, self.done.get(partition, ""), 60000, *args)
        if reply is None:
            self.send_plainly(partition, messages)
            return []
        self.done[partition] = token
        return [m.id for m, verdict in zip(messages, reply[::2]) if verdict == 0]

    def send_plainly(self, partition, messages):
        due, payload, meta, wake = self.queue.keys("due payload meta wake", partition)
        pipe = self.client.pipeline(transaction=True)  # MULTI: a bridge never sees only a part of it
        for m in messages:
            # The fields that an earlier message with this ID left behind are overwritten or deleted.
            pipe.hset(payload, m.id, m.payload) if m.payload else pipe.hdel(payload, m.id)
            pipe.hset(meta, m.id, m.meta()) if m.meta() else pipe.hdel(meta, m.id)
            pipe.zadd(due, {m.id: m.due_ms})  # after the body
        pipe.xadd(wake, {"due_ms": min(m.due_ms for m in messages)}, maxlen=1, approximate=False)
        pipe.execute()

    def repeatedly(self, call, *args):
        delay, end = 0.1, time.monotonic() + self.patience
        while True:
            try:
                return call(*args)
            except (redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError, redis.InvalidResponse) as err:
                if time.monotonic() + delay > end:
                    raise
                print(f"producer.py: {err}; again in {delay:g} s", file=sys.stderr, flush=True)
                time.sleep(delay)
                delay = min(2 * delay, 2)


def main():
    options = argparse.ArgumentParser(description="Schedules messages.")
    options.add_argument("queue")
    options.add_argument("id", nargs="?", help="omitted: one message per line of standard input, each with a new ID")
    options.add_argument("--in", dest="delay", type=float, default=0, metavar="SECONDS")
    options.add_argument("--payload", default="")
    options.add_argument("--header", action="append", default=[], metavar="NAME=VALUE")
    options.add_argument("--max-attempts", type=int)
    args = options.parse_args()

    client = connect()
    producer = Producer(client, args.queue)
    try:
        seconds, micros = producer.repeatedly(client.time)  # the server's clock decides
        due_ms = seconds * 1000 + micros // 1000 + round(args.delay * 1000)
        headers = dict(header.split("=", 1) for header in args.header)
        if args.id:
            bodies = [(args.id, args.payload)]
        else:
            bodies = [(uuid.uuid4().hex, line.rstrip("\n")) for line in sys.stdin]
        messages = [Message(id, due_ms, payload.encode(), headers, args.max_attempts) for id, payload in bodies]
        for i in range(0, len(messages), 500):
            refused = producer.schedule(messages[i:i + 500])
            if refused:
                sys.exit(f"producer.py: scheduled already, or a moment ago: {', '.join(refused)}")
    except redis.RedisError as err:
        sys.exit(f"producer.py: {err}")
    print(f"{len(messages)} scheduled")


if __name__ == "__main__":
    main()
