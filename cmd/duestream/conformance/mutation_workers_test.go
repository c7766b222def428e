package conformance

// pythonWorkers are faults in the worker in Python.
var pythonWorkers = []mutation{
	{
		breaks: "acknowledges before it works", file: "python/worker.py",
		old:   "        try:\n            self.handler(m)\n",
		new:   "        self.client.xack(self.queue.key('stream', partition), self.group, m.entry)\n        try:\n            self.handler(m)\n",
		cases: []string{"ack-after-work"},
	},
	{
		breaks: "prints lines that are not JSON", file: "python/conformance.py",
		old: "json.dumps(line) + ", new: "json.dumps(line)[1:] + ",
		cases: []string{"deliver"},
	},
	{
		breaks: "deletes the stream when it has acknowledged", file: "python/worker.py",
		old:   "            replies = pipe.execute()\n",
		new:   "            replies = pipe.execute()\n            self.client.delete(stream)\n",
		cases: []string{"deliver"}, rule: "keeps-keys",
	},
	{
		breaks: "deletes its own consumer when it starts", file: "python/worker.py",
		old:   "        stream, after, delay = self.queue.key(\"stream\", partition), \">\", 0.1\n",
		new:   "        stream, after, delay = self.queue.key(\"stream\", partition), \">\", 0.1\n        self.create_group(stream)\n        self.client.xgroup_delconsumer(stream, self.group, self.consumer)\n",
		cases: []string{"same-name"},
	},
	{
		breaks: "acknowledges what others of its group hold", file: "python/worker.py",
		old: "        stream, after, delay = self.queue.key(\"stream\", partition), \">\", 0.1\n",
		new: "        stream, after, delay = self.queue.key(\"stream\", partition), \">\", 0.1\n        self.create_group(stream)\n" +
			"        for e in self.client.xpending_range(stream, self.group, \"-\", \"+\", 100): " +
			"self.client.xack(stream, self.group, e[\"message_id\"])\n",
		cases: []string{"entries-of-others"},
	},
	{
		breaks: "claims what others of its group hold", file: "python/worker.py",
		old: "        stream, after, delay = self.queue.key(\"stream\", partition), \">\", 0.1\n",
		new: "        stream, after, delay = self.queue.key(\"stream\", partition), \">\", 0.1\n        self.create_group(stream)\n" +
			"        for e in self.client.xpending_range(stream, self.group, \"-\", \"+\", 100): " +
			"self.client.xclaim(stream, self.group, self.consumer, 0, [e[\"message_id\"]], justid=True)\n",
		cases: []string{"entries-of-others"},
	},
	{
		breaks: "acknowledges at SIGTERM the message that it still works on", file: "python/worker.py",
		old: "        self.stopping.set()\n",
		new: "        self.stopping.set()\n        for partition, held in self.held.items():\n" +
			"            for entry in held: self.client.xack(self.queue.key(\"stream\", partition), self.group, entry)\n",
		cases: []string{"stop-in-work"},
	},
	{
		breaks: "heals a lost group once", file: "python/worker.py",
		old:   "    def create_group(self, stream):\n",
		new:   "    def create_group(self, stream):\n        time.sleep(0.2)\n        if stream in self.__dict__:\n            return\n        self.__dict__[stream] = True\n",
		cases: []string{"partition-lost"},
	},
	{
		breaks: "after the first creation of each group, heals only that of partition 0", file: "python/worker.py",
		old:   "    def create_group(self, stream):\n",
		new:   "    def create_group(self, stream):\n        time.sleep(0.2)\n        if stream in self.__dict__ and \"/\" in stream:\n            return\n        self.__dict__[stream] = True\n",
		cases: []string{"partition-lost"},
	},
	{
		breaks: "reads partition 0 only", file: "python/worker.py",
		old: "                count = self.queue.partitions()\n", new: "                count = min(1, self.queue.partitions())\n",
		cases: []string{"partitions-extend"},
	},
	{
		breaks: "reads the registry at its start only", file: "python/worker.py",
		old: "            self.stopping.wait(5)\n", new: "            self.stopping.wait()\n",
		cases: []string{"partitions-grow"},
	},
	{
		breaks: "writes what it read back into the registry", file: "python/duestream.py",
		old:   "            self.look_again = time.monotonic() + 5\n",
		new:   "            self.look_again = time.monotonic() + 5\n            self.client.hset(f\"{self.prefix}:queues\", self.name, max(self.counts))\n",
		cases: []string{"deliver"}, rule: "keeps-registry",
	},
	{
		breaks: "extends without JUSTID", file: "python/worker.py",
		old: "justid=True)", new: "justid=False)",
		cases: []string{"killed-after-extending"}, rule: "no-claims",
	},
	{
		breaks: "does not extend", file: "python/worker.py",
		old: "target=self.extend_forever)", new: "target=self.ended.wait)",
		cases: []string{"extend"},
	},
	{
		breaks: "extends what it works on, not what waits", file: "python/worker.py",
		old: "            self.held[partition] = {m.entry: m for m in messages}\n", new: "            self.held[partition] = {m.entry: m for m in messages[:1]}\n",
		cases: []string{"extend-held"},
	},
	{
		breaks: "extends partition 0 only", file: "python/worker.py",
		old:   "                    held = [(partition, list(entries.values())) for partition, entries in self.held.items() if entries]\n",
		new:   "                    held = [(partition, list(entries.values())) for partition, entries in self.held.items() if entries and not partition]\n",
		cases: []string{"partitions-extend"},
	},
	{
		breaks: "lets more than 5 s pass between extensions", file: "python/worker.py",
		old: "min(self.policy[\"visibility_ms\"] / 3000, 5)", new: "self.policy[\"visibility_ms\"] / 3000",
		cases: []string{"policy-changes"},
	},
	{
		breaks: "ignores the queue's policy", file: "python/duestream.py",
		old: "own.get(name.encode()), default", new: "None, default",
		cases: []string{"policy-of-queue"},
	},
	{
		breaks: "ignores the group's policy", file: "python/duestream.py",
		old: "own.get(f\"group:{quote(group, safe='')}:{name}\".encode())", new: "None",
		cases: []string{"policy-of-group"},
	},
	{
		breaks: `ignores the field "for"`, file: "python/worker.py",
		old: "        if m.recipient not in (b\"\", self.group.encode()):\n            return True", new: "        if False:\n            return True",
		cases: []string{"for-own-group"},
	},
	{
		breaks: `skips every entry that has the field "for"`, file: "python/worker.py",
		old: "        if m.recipient not in (b\"\", self.group.encode()):\n            return True", new: "        if m.recipient:\n            return True",
		cases: []string{"fail"},
	},
	{
		breaks: "drops an ID that it has seen before", file: "python/worker.py",
		old:   "        try:\n            self.handler(m)\n",
		new:   "        if m.attempt == 1 and m.id in self.__dict__:\n            return True\n        self.__dict__[m.id] = True\n        try:\n            self.handler(m)\n",
		cases: []string{"same-id"},
	},
	{
		breaks: "ends at SIGTERM in the middle of its work", file: "python/worker.py",
		old: "    worker.stop()\n    thread.join()\n", new: "    worker.stop()\n    os._exit(0)\n",
		cases: []string{"stop-in-work"},
	},
	{
		breaks: "takes no notice of SIGTERM", file: "python/worker.py",
		old: "    worker.stop()\n    thread.join()\n", new: "    thread.join()\n",
		cases: []string{"stop-idle", "stop"}, rule: "stops-reading",
	},
	{
		breaks: "takes the entry ID for the message ID", file: "python/worker.py",
		old: "fields.get(b\"id\", entry)", new: "entry",
		cases: []string{"deliver"},
	},
	{
		breaks: "drops an entry without id", file: "python/worker.py",
		old: "        try:\n            self.handler(m)\n", new: "        if m.raw_id == m.entry:\n            return True\n        try:\n            self.handler(m)\n",
		cases: []string{"plain-entry"},
	},
	{
		breaks: "begins with the entries that its consumer name held before", file: "python/worker.py",
		old:   "        stream, after, delay = self.queue.key(\"stream\", partition), \">\", 0.1\n",
		new:   "        stream, after, delay = self.queue.key(\"stream\", partition), \"0\", 0.1\n",
		cases: []string{"killed-by-message"},
	},
	{
		breaks: "releases a failed message", file: "python/worker.py", functions: true,
		old: "\"retry\", delay, \"max_attempts\", text]", new: "\"release\", delay, \"max_attempts\", text]",
		cases: []string{"fail"},
	},
	{
		breaks: "retries a message whose handler asked for a dead letter", file: "python/worker.py", functions: true,
		old: "        if isinstance(failure, DeadLetter):\n", new: "        if False:\n",
		cases: []string{"dead-letter"},
	},
	{
		breaks: "ignores the delay that a failure asks for", file: "python/worker.py", functions: true,
		old: "failure.delay_ms if isinstance(failure, Retry) else \"\"", new: "60000",
		cases: []string{"retry-after"},
	},
	{
		breaks: `does not pass the Redis key "turns" when it releases`, file: "python/worker.py", functions: true,
		old: "            self.queue.fcall(script, keys, self.group, *args, f\"worker {self.consumer}\")\n",
		new: "            actor = [f\"worker {self.consumer}\"]\n" +
			"            if script == \"release\":\n" +
			"                keys, actor = keys[:6], []  # without turns, policy and history\n" +
			"            self.queue.fcall(script, keys, self.group, *args, *actor)\n",
		cases: []string{"stop-releases"},
	},
	{
		breaks: "does not acknowledge retries for other groups", file: "python/worker.py",
		old:    "            return True  # a retry for another group: acknowledged, and that is all\n",
		new:    "            return False\n",
		cases:  []string{"for-own-group"},
		spared: "a bridge acknowledges such an entry after the visibility timeout: nothing is lost, duplicated or late",
	},
	{
		breaks: "blocks for ever", file: "python/worker.py",
		old: "block=2000)", new: "block=0)",
		cases:  []string{"deliver"},
		spared: "its client has a time limit of 10 s, which ends the read: it is no worse than one that blocks for 10 s",
	},
}

// nodeWorkers are faults in the worker in Node.js.
var nodeWorkers = []mutation{
	{
		breaks: "reads with NOACK", file: "node/worker.js",
		old:   "'BLOCK', 2000, 'STREAMS'",
		new:   "'BLOCK', 2000, 'NOACK', 'STREAMS'",
		cases: []string{"killed"},
	},
	{
		breaks: "extends only until SIGTERM", file: "node/worker.js",
		old:   "    while (!this.#ended.signal.aborted) {\n",
		new:   "    while (!this.stopping) {\n",
		cases: []string{"stop-in-work"},
	},
	{
		breaks: "takes attempts of one digit only", file: "node/worker.js",
		old:   "/^\\d+$/.test(raw.attempt)",
		new:   "/^\\d$/.test(raw.attempt)",
		cases: []string{"limits"},
	},
	{
		breaks: "reads under a name of its own", file: "node/worker.js",
		old: "Object.assign(this, { redis, queue: new Queue(redis, queue), group, handler, consumer,",
		new: "Object.assign(this, { redis, queue: new Queue(redis, queue), group, handler, " +
			"consumer: `${consumer}-${process.pid}`,",
		cases: []string{"names"},
	},
	{
		breaks: "gives a retry an endless number of attempts", file: "node/worker.js", functions: true,
		old:   "this.#limits(), this.#delays()",
		new:   "1000, this.#delays()",
		cases: []string{"policy-of-retries"},
	},
	{
		breaks: `does not pass the Redis key "turns" when a message fails`, file: "node/worker.js", functions: true,
		old: "turns policy history', partition);\n", new: "policy history', partition);\n",
		cases: []string{"keys"},
	},
}

// shellWorkers are faults in the worker in bash. The commands of its redis-cli processes count as its own.
var shellWorkers = []mutation{
	{
		breaks: "creates a lost group at $", file: "shell/worker.sh",
		old:   "XGROUP CREATE $stream $group 0 MKSTREAM",
		new:   "XGROUP CREATE $stream $group \\$ MKSTREAM",
		cases: []string{"first-start"},
	},
	{
		breaks: "deletes acknowledged entries, by another process", file: "shell/worker.sh",
		old: "    until call \"XACK $(quote \"$stream\") $group $entry\" || [ -n \"$stopping\" ]; do recover; done\n",
		new: "    until call \"XACK $(quote \"$stream\") $group $entry\" || [ -n \"$stopping\" ]; do recover; done\n" +
			"    redis XDEL \"$stream\" \"$entry\" >/dev/null\n",
		cases: []string{"deliver"}, rule: "keeps-streams",
	},
	{
		breaks: "destroys its group when it stops", file: "shell/worker.sh",
		old: "  parse\n  for ((n",
		new: "  parse\n" +
			"  if [ -n \"$stopping\" ]; then keys 0 stream; redis XGROUP DESTROY \"${keys[0]}\" \"$GROUP\" >/dev/null; fi\n" +
			"  for ((n",
		cases: []string{"stop-idle"}, rule: "keeps-groups",
	},
	{
		breaks: `looks at the field "for" only at second attempts`, file: "shell/worker.sh",
		old: "    [ -z \"$for\" ] || [ \"$for\" = \"$GROUP\" ] || own='' " +
			"# a retry for another group: acknowledged, and that is all\n",
		new:   "    [ -z \"$for\" ] || [ \"$for\" = \"$GROUP\" ] || [ \"$attempt\" != 2 ] || own=''\n",
		cases: []string{"for-own-group"},
	},
	{
		breaks: "acknowledges the third attempt, whatever came of it", file: "shell/worker.sh",
		old:   "    [ \"$status\" = 0 ] || continue\n",
		new:   "    [ \"$status\" = 0 ] || [ \"$attempt\" -ge 3 ] || continue\n",
		cases: []string{"last-attempt"},
	},
	{
		breaks: "schedules retries by plain commands", file: "shell/worker.sh",
		old:   "    [ \"$status\" = 0 ] || continue\n",
		new:   "    [ \"$status\" = 0 ] || { keys 0 due; redis ZADD \"${keys[0]}\" 0 \"$id\" >/dev/null; continue; }\n",
		cases: []string{"fail"}, rule: "no-plain-retries",
	},
	{
		breaks: "leaves out headers whose value is empty", file: "shell/worker.sh",
		old:   "      h:*) headers+=",
		new:   "      h:*) [ -z \"${part[i + 2]}\" ] || headers+=",
		cases: []string{"headers"},
	},
	{
		breaks: "loses the bytes after a zero byte", file: "shell/worker.sh",
		old:   "  printf '%b' \"$text\"\n",
		new:   "  local whole\n  whole=$(printf '%b' \"$text\" | tr '\\\\0' '\\\\n')\n  printf '%s' \"$whole\"\n",
		cases: []string{"payload"},
	},
	{
		breaks: "ends when its connection breaks", file: "shell/worker.sh",
		old:   "  printf 'worker.sh: %s\\n' \"$reply\" >&2\n",
		new:   "  printf 'worker.sh: %s\\n' \"$reply\" >&2\n  exit 1\n",
		cases: []string{"outage"},
	},
}
