package conformance

// pythonWorkers are faults in the worker in Python.
var pythonWorkers = []mutation{
	{
		breaks: "acknowledges before it works", file: "python/worker.py",
		old:   "        try:\n            self.handler(m)\n",
		new:   "        self.client.xack(self.queue.key('stream', partition), self.group, m.entry)\n        try:\n            self.handler(m)\n",
		cases: []string{"ack-after-work"}, rules: []string{"acks-after-work", "ack-after-work"},
	},
	{
		breaks: "acknowledges when half of the work is done", file: "python/worker.py",
		old:   "        try:\n            self.handler(m)\n",
		new:   "        threading.Timer(1, lambda: self.client.xack(self.queue.key('stream', partition), self.group, m.entry)).start()\n        try:\n            self.handler(m)\n",
		cases: []string{"ack-after-work"}, rules: []string{"acks-after-work", "ack-after-work"},
	},
	{
		breaks: "trims the stream after each acknowledgement", file: "python/worker.py",
		old:   "            replies = pipe.execute()\n",
		new:   "            replies = pipe.execute()\n            self.client.xtrim(stream, minid=done[-1].entry)\n",
		cases: []string{"deliver"}, rules: []string{"keeps-streams"},
	},
	{
		breaks: "deletes what it has acknowledged", file: "python/worker.py",
		old:   "                pipe.xack(stream, self.group, m.entry)\n",
		new:   "                pipe.xack(stream, self.group, m.entry)\n                pipe.xdel(stream, m.entry)\n",
		cases: []string{"deliver"}, rules: []string{"keeps-streams"},
	},
	{
		breaks: "deletes the stream when it has acknowledged", file: "python/worker.py",
		old:   "            replies = pipe.execute()\n",
		new:   "            replies = pipe.execute()\n            self.client.delete(stream)\n",
		cases: []string{"deliver"}, rules: []string{"keeps-keys"},
	},
	{
		breaks: "reads with NOACK", file: "python/worker.py",
		old: "count=self.batch, block=2000)", new: "count=self.batch, block=2000, noack=True)",
		cases: []string{"deliver"}, rules: []string{"acknowledged-reads"},
	},
	{
		breaks: "deletes its own consumer when it starts", file: "python/worker.py",
		old:   "        stream, after, delay = self.queue.key(\"stream\", partition), \">\", 0.1\n",
		new:   "        stream, after, delay = self.queue.key(\"stream\", partition), \">\", 0.1\n        self.create_group(stream)\n        self.client.xgroup_delconsumer(stream, self.group, self.consumer)\n",
		cases: []string{"same-name"}, rules: []string{"keeps-consumers"},
	},
	{
		breaks: "destroys its group when it starts", file: "python/worker.py",
		old:   "        stream, after, delay = self.queue.key(\"stream\", partition), \">\", 0.1\n",
		new:   "        stream, after, delay = self.queue.key(\"stream\", partition), \">\", 0.1\n        self.create_group(stream)\n        self.client.xgroup_destroy(stream, self.group)\n",
		cases: []string{"deliver"}, rules: []string{"keeps-groups"},
	},
	{
		breaks: "sets its group to the end when it has created it", file: "python/worker.py",
		old:   "            self.client.xgroup_create(stream, self.group, id=\"0\", mkstream=True)\n",
		new:   "            self.client.xgroup_create(stream, self.group, id=\"0\", mkstream=True)\n            self.client.xgroup_setid(stream, self.group, \"$\")\n",
		cases: []string{"first-start"}, rules: []string{"keeps-groups"},
	},
	{
		breaks: "creates its group at $", file: "python/worker.py",
		old: "id=\"0\", mkstream", new: "id=\"$\", mkstream",
		cases: []string{"first-start"}, rules: []string{"group-at-zero"},
	},
	{
		breaks: "creates its group at the time of its start", file: "python/worker.py",
		old: "id=\"0\", mkstream", new: "id=str(int(time.time() * 1000)), mkstream",
		cases: []string{"first-start"}, rules: []string{"group-at-zero"},
	},
	{
		breaks: "creates groups of further partitions at $", file: "python/worker.py",
		old: "id=\"0\", mkstream", new: "id=\"$\" if \"/\" in stream else \"0\", mkstream",
		cases: []string{"partitions"}, rules: []string{"group-at-zero"},
	},
	{
		breaks: "lets keys expire", file: "python/worker.py",
		old:   "            self.client.xgroup_create(stream, self.group, id=\"0\", mkstream=True)\n",
		new:   "            self.client.xgroup_create(stream, self.group, id=\"0\", mkstream=True)\n            self.client.expire(stream, 86400)\n",
		cases: []string{"first-start"}, rules: []string{"keeps-keys"},
	},
	{
		breaks: "heals a lost group once", file: "python/worker.py",
		old:   "    def create_group(self, stream):\n",
		new:   "    def create_group(self, stream):\n        time.sleep(0.2)\n        if stream in self.__dict__:\n            return\n        self.__dict__[stream] = True\n",
		cases: []string{"group-lost"}, rules: []string{"group-lost"},
	},
	{
		breaks: "heals the group of partition 0 only, once it has worked", file: "python/worker.py",
		old:   "    def create_group(self, stream):\n",
		new:   "    def create_group(self, stream):\n        time.sleep(0.2)\n        if stream in self.__dict__ and \"/\" in stream:\n            return\n        self.__dict__[stream] = True\n",
		cases: []string{"partition-lost"}, rules: []string{"partition-lost"},
	},
	{
		breaks: "ends when its group is lost", file: "python/worker.py",
		old:   "                    self.insist(self.create_group, stream)\n",
		new:   "                    if stream in self.__dict__:\n                        os._exit(1)\n                    self.__dict__[stream] = True\n                    self.insist(self.create_group, stream)\n",
		cases: []string{"group-lost"}, rules: []string{"group-lost"},
	},
	{
		breaks: "reads partition 0 only", file: "python/worker.py",
		old: "                count = self.queue.partitions()\n", new: "                count = min(1, self.queue.partitions())\n",
		cases: []string{"partitions"}, rules: []string{"partitions"},
	},
	{
		breaks: "reads the registry at its start only", file: "python/worker.py",
		old: "            self.stopping.wait(5)\n", new: "            self.stopping.wait()\n",
		cases: []string{"partitions-grow"}, rules: []string{"partitions-grow"},
	},
	{
		breaks: "writes what it read back into the registry", file: "python/duestream.py",
		old:   "            self.look_again = time.monotonic() + 5\n",
		new:   "            self.look_again = time.monotonic() + 5\n            self.client.hset(f\"{self.prefix}:queues\", self.name, max(self.counts))\n",
		cases: []string{"deliver"}, rules: []string{"keeps-registry"},
	},
	{
		breaks: "extends without JUSTID", file: "python/worker.py",
		old: "justid=True)", new: "justid=False)",
		cases: []string{"killed-after-extending"}, rules: []string{"no-claims"},
	},
	{
		breaks: "extends with FORCE", file: "python/worker.py",
		old: "justid=True)", new: "justid=True, force=True)",
		cases: []string{"extend"}, rules: []string{"no-claims"},
	},
	{
		breaks: "sets the counter of deliveries when it extends", file: "python/worker.py",
		old: "justid=True)", new: "justid=True, retrycount=9)",
		cases: []string{"extend"}, rules: []string{"no-claims"},
	},
	{
		breaks: "does not extend", file: "python/worker.py",
		old: "target=self.extend_forever)", new: "target=self.ended.wait)",
		cases: []string{"extend"}, rules: []string{"extend"},
	},
	{
		breaks: "extends at the visibility timeout", file: "python/worker.py",
		old: "self.policy[\"visibility_ms\"] / 3000", new: "self.policy[\"visibility_ms\"] / 300",
		cases: []string{"extend"}, rules: []string{"extend"},
	},
	{
		breaks: "extends what it works on, not what waits", file: "python/worker.py",
		old: "            self.held[partition] = {m.entry: m for m in messages}\n", new: "            self.held[partition] = {m.entry: m for m in messages[:1]}\n",
		cases: []string{"extend-held"}, rules: []string{"extend-held"},
	},
	{
		breaks: "extends partition 0 only", file: "python/worker.py",
		old:   "                    held = [(partition, list(entries.values())) for partition, entries in self.held.items() if entries]\n",
		new:   "                    held = [(partition, list(entries.values())) for partition, entries in self.held.items() if entries and not partition]\n",
		cases: []string{"partitions-extend"}, rules: []string{"partitions-extend"},
	},
	{
		breaks: "lets more than 5 s pass between extensions", file: "python/worker.py",
		old: "min(self.policy[\"visibility_ms\"] / 3000, 5)", new: "self.policy[\"visibility_ms\"] / 3000",
		cases: []string{"policy-changes"}, rules: []string{"policy-changes"},
	},
	{
		breaks: "reads the policy at its start only", file: "python/worker.py",
		old: "                            m.lost.set()\n                self.read_policy()\n", new: "                            m.lost.set()\n",
		cases: []string{"policy-changes"}, rules: []string{"policy-changes"},
	},
	{
		breaks: "ignores the queue's policy", file: "python/duestream.py",
		old: "own.get(name.encode()), default", new: "None, default",
		cases: []string{"policy-of-queue"}, rules: []string{"policy-of-queue"},
	},
	{
		breaks: "ignores the group's policy", file: "python/duestream.py",
		old: "own.get(f\"group:{quote(group, safe='')}:{name}\".encode())", new: "None",
		cases: []string{"policy-of-group"}, rules: []string{"policy-of-group"},
	},
	{
		breaks: "does not encode the group in the names of settings", file: "python/duestream.py",
		old: "{quote(group, safe='')}", new: "{group}",
		cases: []string{"policy-of-group"}, rules: []string{"policy-of-group"},
	},
	{
		breaks: "ignores the defaults", file: "python/duestream.py",
		old: ", default.get(name.encode())\n", new: "\n",
		cases: []string{"extend"}, rules: []string{"extend"},
	},
	{
		breaks: "ignores for", file: "python/worker.py",
		old: "        if m.recipient not in (b\"\", self.group.encode()):\n            return True", new: "        if False:\n            return True",
		cases: []string{"for-another-group"}, rules: []string{"skips-others"},
	},
	{
		breaks: "looks at for from the second attempt on only", file: "python/worker.py",
		old: "        if m.recipient not in (b\"\", self.group.encode()):\n            return True", new: "        if m.attempt > 1 and m.recipient not in (b\"\", self.group.encode()):\n            return True",
		cases: []string{"for-own-group"}, rules: []string{"skips-others"},
	},
	{
		breaks: "takes a group whose name begins like its own for its own", file: "python/worker.py",
		old: "        if m.recipient not in (b\"\", self.group.encode()):\n            return True", new: "        if not m.recipient.startswith(self.group.encode()) and m.recipient:\n            return True",
		cases: []string{"for-own-group"}, rules: []string{"skips-others"},
	},
	{
		breaks: "skips an entry whose for is empty", file: "python/worker.py",
		old: "fields.get(b\"for\", b\"\")", new: "(fields.get(b\"for\", b\"\") if fields.get(b\"for\", b\"x\") else b\"?\")",
		cases: []string{"for-own-group"}, rules: []string{"acks-after-work"},
	},
	{
		breaks: "skips every entry that has for", file: "python/worker.py",
		old: "        if m.recipient not in (b\"\", self.group.encode()):\n            return True", new: "        if m.recipient:\n            return True",
		cases: []string{"fail"}, rules: []string{"acks-no-failure", "acks-after-work"},
	},
	{
		breaks: "acknowledges what failed", file: "python/worker.py",
		old: "            failure = err\n", new: "            failure = err\n            return True\n",
		cases: []string{"fail"}, rules: []string{"acks-no-failure"},
	},
	{
		breaks: "acknowledges the third attempt, whatever came of it", file: "python/worker.py",
		old: "            failure = err\n", new: "            failure = err\n            if m.attempt >= 3:\n                return True\n",
		cases: []string{"last-attempt"}, rules: []string{"acks-no-failure"},
	},
	{
		breaks: "drops an ID that it has seen before", file: "python/worker.py",
		old:   "        try:\n            self.handler(m)\n",
		new:   "        if m.attempt == 1 and m.id in self.__dict__:\n            return True\n        self.__dict__[m.id] = True\n        try:\n            self.handler(m)\n",
		cases: []string{"same-id"}, rules: []string{"acks-after-work"},
	},
	{
		breaks: "schedules retries by plain commands", file: "python/worker.py",
		old:   "            failure = err\n",
		new:   "            failure = err\n            self.client.zadd(self.queue.key('due', partition), {m.id: time.time() * 1000})\n",
		cases: []string{"fail"}, rules: []string{"no-plain-retries"},
	},
	{
		breaks: "adds dead letters by XADD", file: "python/worker.py",
		old:   "            failure = err\n",
		new:   "            failure = err\n            self.client.xadd(self.queue.key('dead', partition), {'id': m.id, 'payload': m.payload})\n",
		cases: []string{"fail"}, rules: []string{"no-plain-retries"},
	},
	{
		breaks: "adds a failed message to the stream again", file: "python/worker.py",
		old:   "            failure = err\n",
		new:   "            failure = err\n            self.client.xadd(self.queue.key('stream', partition), {'id': m.id, 'payload': m.payload})\n            return True\n",
		cases: []string{"fail"}, rules: []string{"keeps-streams"},
	},
	{
		breaks: "acknowledges what it holds at SIGTERM, and ends", file: "python/worker.py",
		old:   "    def stop(self):\n",
		new:   "    def stop(self):\n        for partition, held in self.held.items():\n            self.ack(self.queue.key('stream', partition), list(held.values()))\n        os._exit(0)\n",
		cases: []string{"stop-in-work"}, rules: []string{"acks-after-work"},
	},
	{
		breaks: "ends at SIGTERM in the middle of its work", file: "python/worker.py",
		old: "    worker.stop()\n    thread.join()\n", new: "    worker.stop()\n    os._exit(0)\n",
		cases: []string{"stop-in-work"}, rules: []string{"finishes"},
	},
	{
		breaks: "stops extending at SIGTERM", file: "python/worker.py",
		old: "        while not self.ended.wait(min(", new: "        while not self.stopping.wait(min(",
		cases: []string{"stop-in-work"}, rules: []string{"stop-in-work"},
	},
	{
		breaks: "ends with status 1 at SIGTERM", file: "python/worker.py",
		old: "    worker.stop()\n    thread.join()\n", new: "    worker.stop()\n    thread.join()\n    sys.exit(1)\n",
		cases: []string{"stop-idle"}, rules: []string{"stop-idle"},
	},
	{
		breaks: "takes no notice of SIGTERM", file: "python/worker.py",
		old: "    worker.stop()\n    thread.join()\n", new: "    thread.join()\n",
		cases: []string{"stop-idle"}, rules: []string{"stop-idle", "stops-reading"},
	},
	{
		breaks: "says that every attempt is the first", file: "python/worker.py",
		old: "int(text[\"attempt\"]) if text.get(\"attempt\", \"\").isdecimal() else 1", new: "1",
		cases: []string{"fail"}, rules: []string{"as-given"},
	},
	{
		breaks: "counts attempts from 0", file: "python/worker.py",
		old: "int(text[\"attempt\"]) if", new: "int(text[\"attempt\"]) - 1 if",
		cases: []string{"deliver"}, rules: []string{"as-given"},
	},
	{
		breaks: "takes payloads for text", file: "python/worker.py",
		old: "fields.get(b\"payload\", b\"\")", new: "fields.get(b\"payload\", b\"\").decode(errors=\"replace\").encode()",
		cases: []string{"payload"}, rules: []string{"as-given"},
	},
	{
		breaks: "strips white space from payloads", file: "python/worker.py",
		old: "fields.get(b\"payload\", b\"\")", new: "fields.get(b\"payload\", b\"\").strip()",
		cases: []string{"payload"}, rules: []string{"as-given"},
	},
	{
		breaks: "cuts payloads at 64 KiB", file: "python/worker.py",
		old: "fields.get(b\"payload\", b\"\")", new: "fields.get(b\"payload\", b\"\")[:65536]",
		cases: []string{"payload"}, rules: []string{"as-given"},
	},
	{
		breaks: "takes header names for ASCII", file: "python/worker.py",
		old: "{name[2:]: value for", new: "{name[2:].encode('ascii', 'replace').decode(): value for",
		cases: []string{"headers"}, rules: []string{"as-given"},
	},
	{
		breaks: "leaves out empty headers", file: "python/worker.py",
		old: "if name.startswith(\"h:\")}", new: "if name.startswith(\"h:\") and value}",
		cases: []string{"headers"}, rules: []string{"as-given"},
	},
	{
		breaks: "takes ten headers at most", file: "python/worker.py",
		old: "for name, value in text.items() if name.startswith(\"h:\")}", new: "for name, value in [h for h in text.items() if h[0].startswith(\"h:\")][:10]}",
		cases: []string{"limits"}, rules: []string{"as-given"},
	},
	{
		breaks: "takes the entry ID for the message ID", file: "python/worker.py",
		old: "fields.get(b\"id\", entry)", new: "entry",
		cases: []string{"deliver"}, rules: []string{"begins-what-it-got"},
	},
	{
		breaks: "drops an entry without id", file: "python/worker.py",
		old: "        try:\n            self.handler(m)\n", new: "        if m.raw_id == m.entry:\n            return True\n        try:\n            self.handler(m)\n",
		cases: []string{"plain-entry"}, rules: []string{"acks-after-work"},
	},
	{
		breaks: "works on each message twice", file: "python/worker.py",
		old: "            self.handler(m)\n", new: "            self.handler(m)\n            self.handler(m)\n",
		cases: []string{"deliver"}, rules: []string{"begins-what-it-got"},
	},
	{
		breaks: "reads under a name of its own", file: "python/worker.py",
		old: "consumer or f\"", new: "f\"",
		cases: []string{"deliver"}, rules: []string{"own-name"},
	},
	{
		breaks: "claims what others hold, when it starts", file: "python/worker.py",
		old:   "        stream, after, delay = self.queue.key(\"stream\", partition), \">\", 0.1\n",
		new:   "        stream, after, delay = self.queue.key(\"stream\", partition), \">\", 0.1\n        self.create_group(stream)\n        self.client.execute_command(\"XAUTOCLAIM\", stream, self.group, self.consumer, 1000, \"0\")\n",
		cases: []string{"deliver"}, rules: []string{"no-claims"},
	},
	{
		breaks: "begins with what its name held before", file: "python/worker.py",
		old:   "        stream, after, delay = self.queue.key(\"stream\", partition), \">\", 0.1\n",
		new:   "        stream, after, delay = self.queue.key(\"stream\", partition), \"0\", 0.1\n",
		cases: []string{"killed-by-message"}, rules: []string{"killed-by-message"},
	},
	{
		breaks: "ends when a connection breaks", file: "python/worker.py",
		old: "            except redis.RedisError as err:\n                delay = self.pause(err, delay)\n", new: "            except redis.RedisError as err:\n                os._exit(1)\n",
		cases: []string{"outage"}, rules: []string{"outage"},
	},
	{
		breaks: "gives up after an outage of 5 s", file: "python/worker.py",
		old:   "        self.say(err)\n        self.stopping.wait(delay * random.uniform(0.5, 1))\n",
		new:   "        self.say(err)\n        if delay > 1.5:\n            os._exit(0)\n        self.stopping.wait(delay * random.uniform(0.5, 1))\n",
		cases: []string{"outage"}, rules: []string{"outage"},
	},
	{
		breaks: "gives a retry an endless number of attempts", file: "python/worker.py", functions: true,
		old: "[self.limits(), self.delays(), *how]", new: "[1000, self.delays(), *how]",
		cases: []string{"policy-of-retries"}, rules: []string{"policy-of-retries"},
	},
	{
		breaks: "retries at once, whatever the policy says", file: "python/worker.py", functions: true,
		old: "[self.limits(), self.delays(), *how]", new: "[self.limits(), \"1\", *how]",
		cases: []string{"policy-of-retries"}, rules: []string{"policy-of-retries"},
	},
	{
		breaks: "releases what failed", file: "python/worker.py", functions: true,
		old: "\"retry\", delay, \"max_attempts\", text]", new: "\"release\", delay, \"max_attempts\", text]",
		cases: []string{"fail"}, rules: []string{"fail"},
	},
	{
		breaks: "retries what asked for a dead letter", file: "python/worker.py", functions: true,
		old: "        if isinstance(failure, DeadLetter):\n", new: "        if False:\n",
		cases: []string{"dead-letter"}, rules: []string{"dead-letter"},
	},
	{
		breaks: "ignores a delay of its own", file: "python/worker.py", functions: true,
		old: "failure.delay_ms if isinstance(failure, Retry) else \"\"", new: "60000",
		cases: []string{"retry-after"}, rules: []string{"retry-after"},
	},
	{
		breaks: "does not give the key turns when a message fails", file: "python/worker.py", functions: true,
		old:   "            self.queue.fcall(script, keys, self.group, *args, f\"worker {self.consumer}\")\n",
		new:   "            self.queue.fcall(script, keys[:6], self.group, *args)\n",
		cases: []string{"keys"}, rules: []string{"keys"},
	},
	{
		breaks: "does not give the key turns when it releases", file: "python/worker.py", functions: true,
		old: "            self.queue.fcall(script, keys, self.group, *args, f\"worker {self.consumer}\")\n",
		new: "            actor = [f\"worker {self.consumer}\"] if script != \"release\" else []\n" +
			"            self.queue.fcall(script, keys[:6 + 3 * len(actor)], self.group, *args, *actor)\n",
		cases: []string{"stop-releases"}, rules: []string{"stop-releases"},
	},
	{
		breaks: "repeats for ever a call without the key turns", file: "python/worker.py", functions: true,
		old: "            self.queue.fcall(script, keys, self.group, *args, f\"worker {self.consumer}\")\n",
		new: "            if -1 in (self.queue.fcall(script, keys[:6], self.group, *args) or []):\n" +
			"                raise redis.RedisError(\"still pending\")\n",
		cases: []string{"keys"}, rules: []string{"keys"},
	},
	{
		breaks: "does not say why it failed", file: "python/worker.py", functions: true,
		old: "        text = str(failure).encode()[:1024].decode(errors=\"ignore\")\n", new: "        text = \"\"\n",
		cases: []string{"retry-after"}, rules: []string{"retry-after"},
	},
	{
		breaks: "does not release at SIGTERM what it has not begun", file: "python/worker.py", functions: true,
		old: "        if left:\n", new: "        if False:\n",
		cases: []string{"stop-releases"}, rules: []string{"stop-releases"},
	},
	{
		breaks: "acknowledges by the function before it works", file: "python/worker.py", functions: true,
		old: "        try:\n            self.handler(m)\n", new: "        self.ack(self.queue.key('stream', partition), [m])\n        try:\n            self.handler(m)\n",
		cases: []string{"ack-after-work"}, rules: []string{"acks-after-work", "ack-after-work"},
	},
	{
		breaks: "leaves what is for others pending", file: "python/worker.py",
		old: "            return True  # a retry for another group: acknowledged, and that is all\n", new: "            return False\n",
		cases:  []string{"for-another-group"},
		spared: "a bridge acknowledges such an entry after the visibility timeout: nothing is lost, duplicated or late",
	},
	{
		breaks: "blocks for ever", file: "python/worker.py",
		old: "block=2000)", new: "block=0)",
		cases:  []string{"deliver"},
		spared: "its client has a time limit of 10 s, which ends the read: it is no worse than one that blocks for 10 s",
	},
}
