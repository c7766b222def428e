"""The code that producer.py and worker.py share: the keys of a queue, its partitions and settings, and calls of the functions library."""
import os
import re
import time
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

# By name: the built-in value, the minimum and the maximum. See docs/reference/protocol.md section 11.
TEN_YEARS = 10 * 365 * 24 * 3600 * 1000
SETTINGS = {"visibility_ms": (30000, 100, 604800000), "max_attempts": (40, 1, 1000000),
            "retry_min_ms": (1000, 1, TEN_YEARS), "retry_max_ms": (3600000, 1, TEN_YEARS), "retry_for_ms": (0, 0, TEN_YEARS)}


def connect():
    """Returns a client for DUESTREAM_REDIS_URL. Its time limit is longer than a blocking read. Callers decide what to repeat after an error."""
    url = os.environ.get("DUESTREAM_REDIS_URL", "redis://127.0.0.1:6379")
    return redis.Redis.from_url(url, socket_timeout=10, retry=Retry(NoBackoff(), 0))


class Queue:
    def __init__(self, client, name, prefix=None):
        self.client, self.name = client, name
        self.prefix = prefix or os.environ.get("DUESTREAM_PREFIX", "duestream")
        self.counts, self.look_again = {1}, 0
        # whether plain commands must be used, and until when the library is not tried
        self.plain, self.plain_until = True, 0

    def key(self, kind, partition=0):
        return f"{self.prefix}:{{{self.name}{f'/{partition}' if partition else ''}}}:{kind}"

    def keys(self, kinds, partition):
        return [self.key(kind, partition) for kind in kinds.split()]

    def partitions(self):
        """Returns how many partitions the queue has.

        It reads the registry at most every 5 s, and registers the queue if the registry does not have it."""
        if time.monotonic() >= self.look_again:
            registered = self.client.hget(f"{self.prefix}:queues", self.name)
            if registered is None:
                self.register()
            counts = {1} | self.numbers(registered)
            if self.counts - counts:  # the registry lost some counts, or the queue was deleted
                self.counts -= self.numbers(self.client.hget(f"{self.prefix}:queues", f"/deleted/{self.name}"))
            self.counts |= counts
            self.look_again = time.monotonic() + 5
        return max(self.counts)

    @staticmethod
    def numbers(text):
        """Returns the partition counts in a field of the registry."""
        return {int(n) for n in (text or b"").split(b",") if n.isdigit() and 1 <= int(n) <= 256}

    def register(self):
        """Tells the bridges of the queue. Otherwise they find the queue by a scan, which takes seconds or minutes."""
        # "-" makes the script leave out the counts of a deleted queue
        counts = ",".join(map(str, ["-", *sorted(self.counts)]))
        added = self.fcall("register", [f"{self.prefix}:queues"], self.name, counts)
        if added is None:
            added = self.client.hsetnx(f"{self.prefix}:queues", self.name, "1")
        if added:
            self.client.xadd(f"{self.prefix}:wake", {"queues": 1}, maxlen=1, approximate=False)

    def policy(self, group):
        """Returns the settings for a group.

        Each setting comes from the group, else from the queue, else from the defaults, else it is built in."""
        own = self.client.hgetall(self.key("policy"))
        default = self.client.hgetall(f"{self.prefix}:defaults")
        found = {"retry_delays_ms": "0"}

        def levels(name):
            return own.get(f"group:{quote(group, safe='')}:{name}".encode()), own.get(name.encode()), default.get(name.encode())

        for value in reversed(levels("retry_delays_ms")):
            if value and re.fullmatch(rb"[0-9]+(,[0-9]+)*", value):
                found["retry_delays_ms"] = value.decode()
        for name, (built_in, least, most) in SETTINGS.items():
            values = levels(name)
            found[name] = next((int(v) for v in values if v and v.isdigit() and least <= int(v) <= most), built_in)
        return found

    def fcall(self, name, keys, *args):
        """Calls a function of the library. Returns None if the library is not loaded: then plain commands must be used.

        Tries the library again after 5 s."""
        if time.monotonic() < self.plain_until:
            return None
        try:
            reply = self.client.fcall(f"duestream_{name}", len(keys), *keys, *args)
            self.plain = False
            return reply
        except redis.exceptions.NoPermissionError:
            pass
        except redis.ResponseError as err:
            if not str(err).lower().startswith(("function not found", "unknown command")):
                raise
        self.plain, self.plain_until = True, time.monotonic() + 5
        return None
