package conformance

import "strings"

// pythonProducers are faults in the producer in Python.
var pythonProducers = []mutation{
	// By plain commands.
	plainPython("adds no wake token", `        pipe.xadd(wake, {"due_ms": min(m.due_ms for m in messages)}, maxlen=1, approximate=False)
`, ``, "wakes-each"),
	plainPython("writes the payload before the MULTI", `        for m in messages:
            # The fields`, `        for m in messages: self.client.hset(payload, m.id, m.payload)
        for m in messages:
            # The fields`, "arrives", "writes-whole"),
	plainPython("leaves the payload of an ID that comes again", ` if m.payload else pipe.hdel(payload, m.id)`,
		` if m.payload else None`, "replace"),
	plainPython("gives seconds for milliseconds", `{m.id: m.due_ms}`, `{m.id: m.due_ms // 1000}`, "replace"),
	plainPython("lets a message expire with its key", `        pipe.execute()`, `        pipe.expire(payload, 86400)
        pipe.execute()`, "arrives", "keeps-keys"),
	plainPython("takes out of the schedule what is overdue", `        pipe.execute()`, `        pipe.zremrangebyscore(due, "-inf", 0)
        pipe.execute()`, "arrives", "takes-nothing-out"),
	plainPython("itself adds messages to the stream, as a bridge does", `        pipe.execute()`, `        pipe.execute()
        self.client.xadd(self.queue.key("stream", partition), {"id": messages[0].id})`, "arrives", "keeps-streams"),
	plainPython("sets the policy", `        self.done = {}`, `        client.hset(self.queue.key("policy"), "visibility_ms", 1000)
        self.done = {}`, "arrives", "keeps-registry"),
	plainPython("does not register its queue", `            if registered is None:
                self.register()
`, ``, "registers").in("python/duestream.py"),
	plainPython("ends at the first refusal", `        except redis.RedisError as err:
            say(id=message.id, ok=False, error=str(err))`, `        except redis.RedisError as err:
            sys.exit(str(err))`, "failed-command").in("python/conformance.py"),
	plainPython("sends at the end of its input", `    for line in sys.stdin:`, `    for line in list(sys.stdin):`,
		"arrives").in("python/conformance.py"),
	plainPython("drops an ID that it has seen", `        try:
            refused = producer`, `        seen = globals().setdefault("seen", set())
        if message.id in seen: say(id=message.id, ok=True); continue
        seen.add(message.id)
        try:
            refused = producer`, "reused").in("python/conformance.py"),
	plainPython("forgets max_attempts", `order.get("max_attempts"), `, `None, `, "limits").in("python/conformance.py"),
	loadedPython("sends no token", `            token = uuid.uuid4().hex  #`, `            token = ""  #`, "repeats-once"),
	loadedPython("has one token for all calls", `            token = uuid.uuid4().hex  #`,
		`            token = "one"  #`, "input-ends"),
	loadedPython("replaces a message that is scheduled", `m.meta(), m.dedup_ms)]`, `m.meta(), m.dedup_ms or "")]`,
		"duplicate"),
	loadedPython("ignores dedup windows", `m.meta(), m.dedup_ms)]`, `m.meta(), 0)]`, "dedup-window"),
}

// nodeProducers are faults in the producer in Node.js.
var nodeProducers = []mutation{
	node("ignores errors inside EXEC", `if (failed) throw failed[0];`, ``, "failed-command"),
	node("asks for the partition at each try",
		`    return repeatedly(async () => await this.#call(partition, message, token)`,
		`    return repeatedly(async () => await this.#call(crc32(Buffer.from(message.id)) % `+
			`await this.queue.partitions(), message, token)`, "outage").loaded(),
	node("hashes characters, not bytes", `crc32(Buffer.from(message.id))`,
		`crc32(Buffer.from(message.id, 'latin1'))`, "partitions"),
	node("takes payloads for text", `payload: Buffer.from(payload, 'base64')`,
		`payload: Buffer.from(payload, 'base64').toString()`, "payload").in("node/conformance.js"),
	node("does not wait for the reply", `const ok = await producer.schedule(`,
		`const ok = true; producer.schedule(`, "ok-when-stored").in("node/conformance.js"),
	node("stops reading before the end of its input",
		`for await (const line of createInterface({ input: process.stdin })) {`,
		`for await (const line of createInterface({ input: process.stdin })) { if (line.includes('m-5')) break;`,
		"input-ends").in("node/conformance.js"),
	node("has a new token for each try", `await this.#call(partition, message, token)`,
		`await this.#call(partition, message, randomUUID())`, "repeats-once").loaded(),
	node("repeats for 3 s", `patienceMs = 15000`, `patienceMs = 3000`, "outage"),
	node("loses a header whose value is empty", `Object.entries(headers).map(`,
		`Object.entries(headers).filter(([, value]) => value).map(`, "headers"),
}

// sparedProducers are faults that the kit accepts, with the reason.
var sparedProducers = []mutation{
	plainPython("loses the thousandth message", `        refused = []
        count =`, `        refused = []
        self.n = getattr(self, "n", 0) + 1
        if self.n == 1000: return []
        count =`, "arrives").spare("no case sends so many"),
	plainPython("cuts payloads at 2 MiB", `base64.b64decode(order.get("payload", ""))`, `base64.b64decode(order.get("payload", ""))[:2 << 20]`, "payload").in("python/conformance.py").
		spare("the largest payload that the kit sends is 1 MiB"),
	plainPython("does not register again what the registry lost", `            if registered is None:
`, `            if registered is None and not self.look_again:
`, "registers").in("python/duestream.py").
		spare("it loses nothing: bridges register it again, and find by a scan what nobody registered"),
	loadedPython("never lets the server forget a token early",
		`token, self.done.get(partition, ""), 60000`, `token, "", 60000`, "repeats-once").
		spare("it loses nothing: the server forgets it after `token_ms`"),
	plainPython("repeats without growing pauses", `delay = min(2 * delay, 2)`, `delay = 0.1`, "request-lost").
		spare("it loses nothing; the pauses are for the server's sake"),
	plainPython("closes no connection at its end", `    producer = Producer(connect(), queue)
    for line`, `    producer = Producer(connect(), queue)
    producer.spare = connect(); producer.spare.ping()
    for line`, "arrives").in("python/conformance.py").spare("it loses nothing: the server closes what has ended"),
}

// shellProducers are faults in the producer in bash.
var shellProducers = []mutation{
	shell("uses a fixed placeholder for the payload", `local body=@$token`, `local body=@payload`,
		"ids"),
	shell("adds no wake token", `redis.call("XADD", KEYS[4], "MAXLEN", "1", "*", "due_ms", due)
`, ``, "wakes-each"),
	shell("lets a message expire, inside its script", `redis.call("ZADD", KEYS[3], due, ARGV[1])
`, `redis.call("ZADD", KEYS[3], due, ARGV[1]) redis.call("EXPIRE", KEYS[3], 86400)
`, "no-expiry"),
	shell("repeats nothing", `    sleep 0.5
`, `    return 1
`, "request-lost"),
	shell("takes the smallest partition count", `[ "$n" -gt "$count" ]; then count=$n`,
		`[ "$count" = 1 ]; then count=$n`, "partitions-grow").in("shell/duestream.sh"),
}

// plainPython returns a mutation of the Python producer, which runs without the functions library.
func plainPython(breaks, old, new, one string, rule ...string) mutation {
	return inFile("python/producer.py", breaks, old, new, one, rule)
}

// loadedPython is like plainPython, but the functions library is loaded.
func loadedPython(breaks, old, new, one string, rule ...string) mutation {
	return plainPython(breaks, old, new, one, rule...).loaded()
}

func node(breaks, old, new, one string, rule ...string) mutation {
	return inFile("node/producer.js", breaks, old, new, one, rule)
}

func shell(breaks, old, new, one string, rule ...string) mutation {
	return inFile("shell/producer.sh", breaks, old, new, one, rule)
}

// inFile returns a mutation of a file that the case one refuses, or the watched rule if it is given. rule has at most
// one name.
func inFile(file, breaks, old, new, one string, rule []string) mutation {
	return mutation{breaks: breaks, file: file, old: old, new: new, cases: []string{one}, rule: strings.Join(rule, "")}
}

// in sets another file whose text is replaced.
func (m mutation) in(file string) mutation {
	m.file = file
	return m
}

// spare says that the kit accepts the mutation, with the reason.
func (m mutation) spare(why string) mutation {
	m.spared = why
	return m
}

// loaded makes the mutation run with the functions library.
func (m mutation) loaded() mutation {
	m.functions = true
	return m
}
