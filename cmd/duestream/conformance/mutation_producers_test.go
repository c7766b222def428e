package conformance

// pythonProducers are faults in the producer in Python.
var pythonProducers = []mutation{
	// By plain commands.
	plainPython("adds no wake token", `        pipe.xadd(wake, {"due_ms": min(m.due_ms for m in messages)}, maxlen=1, approximate=False)
`, ``, "answers", "wakes"),
	plainPython("adds a wake token once only", `        pipe.xadd(wake, {`, `        if not hasattr(self, "woke"): self.woke = pipe.xadd(wake, {`, "wakes-each", "wakes"),
	plainPython("adds the wake token to partition 0", `        pipe.xadd(wake,`, `        pipe.xadd(self.queue.key("wake"),`, "wakes-each", "wakes"),
	plainPython("adds the wake token before the transaction", `        pipe = self.client.pipeline(transaction=True)  # MULTI`, `        self.client.xadd(wake, {"due_ms": 0}, maxlen=1, approximate=False); wake += "-"
        pipe = self.client.pipeline(transaction=True)  # MULTI`, "answers", "wakes"),
	plainPython("keeps all wake tokens", `{"due_ms": min(m.due_ms for m in messages)}, maxlen=1, approximate=False)`, `{"due_ms": min(m.due_ms for m in messages)})`, "answers", "wakes"),
	plainPython("trims wake tokens about", `{"due_ms": min(m.due_ms for m in messages)}, maxlen=1, approximate=False)`, `{"due_ms": min(m.due_ms for m in messages)}, maxlen=1)`, "answers", "wakes"),
	plainPython("names the wake token itself", `{"due_ms": min(m.due_ms for m in messages)}, maxlen=1,`, `{"due_ms": 1}, id=f"{messages[0].due_ms}-1", maxlen=1,`, "answers", "wakes"),
	plainPython("sends no MULTI", `pipeline(transaction=True)`, `pipeline(transaction=False)`, "answers", "writes-whole"),
	plainPython("writes the payload behind the due time", `            pipe.hset(payload, m.id, m.payload) if m.payload else pipe.hdel(payload, m.id)
            pipe.hset(meta, m.id, m.meta()) if m.meta() else pipe.hdel(meta, m.id)
            pipe.zadd(due, {m.id: m.due_ms})  # after the body
`, `            pipe.zadd(due, {m.id: m.due_ms})
            pipe.hset(payload, m.id, m.payload)
            pipe.hset(meta, m.id, m.meta()) if m.meta() else pipe.hdel(meta, m.id)
`, "answers", "writes-whole"),
	plainPython("writes the payload before the MULTI", `        for m in messages:
            # The fields`, `        for m in messages: self.client.hset(payload, m.id, m.payload)
        for m in messages:
            # The fields`, "arrives", "writes-whole"),
	plainPython("leaves the payload of an ID that comes again", ` if m.payload else pipe.hdel(payload, m.id)`, ` if m.payload else None`, "replace", "replace"),
	plainPython("leaves the meta of an ID that comes again", ` if m.meta() else pipe.hdel(meta, m.id)`, ` if m.meta() else None`, "replace", "replace"),
	plainPython("gives seconds for milliseconds", `{m.id: m.due_ms}`, `{m.id: m.due_ms // 1000}`, "score", "score"),
	plainPython("rounds the due time to seconds", `{m.id: m.due_ms}`, `{m.id: m.due_ms // 1000 * 1000}`, "score", "score"),
	plainPython("schedules a new ID only, and says ok", `pipe.zadd(due, {m.id: m.due_ms})`, `pipe.zadd(due, {m.id: m.due_ms}, nx=True)`, "replace", "replace"),
	plainPython("moves a due time forward only", `pipe.zadd(due, {m.id: m.due_ms})`, `pipe.zadd(due, {m.id: m.due_ms}, gt=True)`, "replace", "replace"),
	plainPython("lets a message expire with its key", `        pipe.execute()`, `        pipe.expire(payload, 86400)
        pipe.execute()`, "answers", "keeps-keys"),
	plainPython("deletes the keys of the queue at its start", `        self.done = {}`, `        client.delete(self.queue.key("due"))
        self.done = {}`, "answers", "keeps-keys"),
	plainPython("takes out of the schedule what is overdue", `        pipe.execute()`, `        pipe.zremrangebyscore(due, "-inf", 0)
        pipe.execute()`, "answers", "takes-nothing-out"),
	plainPython("takes its ID out of the schedule before it schedules it", `        for m in messages:
            # The fields`, `        for m in messages:
            pipe.zrem(due, m.id)
            # The fields`, "answers", "takes-nothing-out"),
	plainPython("adds what is due to the stream itself", `        pipe.execute()`, `        pipe.execute()
        self.client.xadd(self.queue.key("stream", partition), {"id": messages[0].id})`, "answers", "keeps-streams"),
	plainPython("trims the stream", `        pipe.execute()`, `        pipe.execute()
        self.client.xtrim(self.queue.key("stream", partition), maxlen=1000)`, "answers", "keeps-streams"),
	plainPython("trims the dead letters", `        pipe.execute()`, `        pipe.execute()
        self.client.xtrim(self.queue.key("dead", partition), maxlen=1000)`, "answers", "takes-nothing-out"),
	plainPython("sets the policy", `        self.done = {}`, `        client.hset(self.queue.key("policy"), "visibility_ms", 1000)
        self.done = {}`, "answers", "keeps-registry"),
	plainPython("does not register its queue", `            if registered is None:
                self.register()
`, ``, "registers", "registers").in("python/duestream.py"),
	plainPython("registers without a token", `        if added:
            self.client.xadd(`, `        if False:
            self.client.xadd(`, "registers", "registers").in("python/duestream.py"),
	plainPython("registers by HSET", `self.client.hsetnx(f"{self.prefix}:queues", self.name, "1")`, `self.client.hset(f"{self.prefix}:queues", self.name, "1")`, "registers", "keeps-registry").in("python/duestream.py"),
	plainPython("chooses the partition by another hash", `zlib.crc32(m.id.encode())`, `zlib.adler32(m.id.encode())`, "partitions", "partitions"),
	plainPython("hashes the ID in another case", `zlib.crc32(m.id.encode())`, `zlib.crc32(m.id.upper().encode())`, "partitions", "partitions"),
	plainPython("reads the partitions once", `            self.look_again = time.monotonic() + 5
`, `            self.look_again = time.monotonic() + 1e9
`, "partitions-grow", "partitions-grow").in("python/duestream.py"),
	plainPython("uses the first partition count for ever", `return max(self.counts)`, `return sorted(self.counts)[:2][-1]`, "partitions-grow", "partitions-grow").in("python/duestream.py"),
	plainPython("stops at a broken connection", `            except (redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError, redis.InvalidResponse) as err:`,
		`            except redis.ReadOnlyError as err:`, "request-lost", "request-lost", "reply-lost"),
	plainPython("says ok when the connection broke", `                if time.monotonic() + delay > end:
                    raise`, `                if args:
                    return []`, "request-lost", "answers-the-truth"),
	plainPython("gives up after 5 s", `patience=15`, `patience=5`, "outage", "outage"),
	plainPython("asks for the partition at each try", `            refused += self.repeatedly(self.send, partition, part, token)`, `            refused += self.repeatedly(lambda p, *a: self.send(zlib.crc32(part[0].id.encode()) % self.queue.partitions(), *a), partition, part, token)`, "outage", "repeats-in-place"),
	plainPython("ignores errors inside EXEC", `        pipe.execute()`, `        pipe.execute(raise_on_error=False)`, "failed-command", "answers-the-truth"),
	plainPython("ignores what the server refuses", `        except redis.RedisError as err:
            say(id=message.id, ok=False, error=str(err))`, `        except redis.RedisError as err:
            say(id=message.id, ok=True)`, "failed-command", "answers-the-truth").in("python/conformance.py"),
	plainPython("ends at the first refusal", `        except redis.RedisError as err:
            say(id=message.id, ok=False, error=str(err))`, `        except redis.RedisError as err:
            sys.exit(str(err))`, "failed-command", "failed-command").in("python/conformance.py"),
	plainPython("answers before it schedules", `        try:
            refused = producer`, `        say(id=message.id, ok=True)
        try:
            refused = producer`, "answers", "answers-the-truth").in("python/conformance.py"),
	plainPython("sends at the end of its input", `    for line in sys.stdin:`, `    for line in list(sys.stdin):`, "answers", "answers").in("python/conformance.py"),
	plainPython("forgets the last line", `    for line in sys.stdin:
        order`, `    lines = sys.stdin.read().splitlines() if False else iter(sys.stdin)
    last = next(lines)
    for line in lines:
        last, line = line, last
        order`, "input-ends", "input-ends").in("python/conformance.py"),
	plainPython("drops an ID that it has seen", `        try:
            refused = producer`, `        seen = globals().setdefault("seen", set())
        if message.id in seen: say(id=message.id, ok=True); continue
        seen.add(message.id)
        try:
            refused = producer`, "reused", "answers-the-truth").in("python/conformance.py"),
	plainPython("takes payloads for text", `base64.b64decode(order.get("payload", ""))`, `base64.b64decode(order.get("payload", "")).decode(errors="replace").encode()`, "payload", "payload").in("python/conformance.py"),
	plainPython("strips payloads", `base64.b64decode(order.get("payload", ""))`, `base64.b64decode(order.get("payload", "")).strip()`, "payload", "payload").in("python/conformance.py"),
	plainPython("leaves payloads in base64", `base64.b64decode(order.get("payload", ""))`, `order.get("payload", "").encode()`, "payload", "payload").in("python/conformance.py"),
	plainPython("forgets headers", `order.get("headers", {})`, `{}`, "headers", "headers").in("python/conformance.py"),
	plainPython("forgets max_attempts", `order.get("max_attempts"), `, `None, `, "limits", "limits").in("python/conformance.py"),
	plainPython("forgets expires_ms", `order.get("expires_ms"), `, `None, `, "limits", "limits").in("python/conformance.py"),
	plainPython("lowers the case of header names", `{"h:" + name: value`, `{"h:" + name.lower(): value`, "headers", "headers"),
	plainPython("drops headers that are empty", `for name, value in self.headers.items()}`, `for name, value in self.headers.items() if value}`, "headers", "headers"),
	plainPython("writes limits as numbers", `{name: str(getattr(self, name))`, `{name: getattr(self, name)`, "limits", "limits"),
	plainPython("writes meta that is not UTF-8", `return json.dumps(fields, ensure_ascii=False) if fields else ""`, `return json.dumps(fields, ensure_ascii=False).encode("latin-1", "replace") if fields else ""`, "headers", "headers"),
	plainPython("strips IDs", `Message(order["id"]`, `Message(order["id"].strip()`, "ids", "ids", "answers-the-truth").in("python/conformance.py"),
	plainPython("normalises IDs", `Message(order["id"]`, `Message(__import__("unicodedata").normalize("NFC", order["id"])`, "ids", "ids", "answers-the-truth").in("python/conformance.py"),
	plainPython("cuts IDs at 64 bytes", `m.id: m.due_ms`, `m.id[:64]: m.due_ms`, "ids", "ids", "answers-the-truth"),

	// By functions.
	loadedPython("has a new token for each try", `            refused += self.repeatedly(self.send, partition, part, token)`, `            refused += self.repeatedly(lambda *a: self.send(*a, uuid.uuid4().hex), partition, part)`, "repeats-once", "repeats-with-token"),
	loadedPython("sends no token", `            token = uuid.uuid4().hex  #`, `            token = ""  #`, "repeats-once", "repeats-once"),
	loadedPython("has one token for all calls", `            token = uuid.uuid4().hex  #`, `            token = "token"  #`, "repeats-once", "repeats-with-token"),
	loadedPython("says ok to a duplicate", `ok=not refused`, `ok=True`, "duplicate", "answers-the-truth").in("python/conformance.py"),
	loadedPython("replaces a message that is scheduled", `m.meta(), m.dedup_ms)]`, `m.meta(), m.dedup_ms or "")]`, "duplicate", "duplicate"),
	loadedPython("ignores dedup windows", `m.meta(), m.dedup_ms)]`, `m.meta(), 0)]`, "dedup-window", "dedup-window"),
	loadedPython("remembers every ID for an hour", `m.meta(), m.dedup_ms)]`, `m.meta(), m.dedup_ms or 3600000)]`, "duplicate", "duplicate"),
	loadedPython("mixes the keys of partitions", `self.queue.keys("due payload meta stream wake seen policy", partition)`, `self.queue.keys("due payload meta stream", partition) + self.queue.keys("wake seen policy", 0)`, "wakes-each", "wakes-each"),
	loadedPython("swaps payload and meta", `m.payload, m.meta(), m.dedup_ms)]`, `m.meta(), m.payload, m.dedup_ms)]`, "arrives", "answers-the-truth", "arrives"),
}

// nodeProducers are faults in the producer in Node.js.
var nodeProducers = []mutation{
	node("ignores errors inside EXEC", `if (failed) throw failed[0];`, ``, "failed-command", "answers-the-truth"),
	node("asks for the partition at each try", `    return repeatedly(async () => await this.#call(partition, message, token)`, `    return repeatedly(async () => await this.#call(crc32(Buffer.from(message.id)) % await this.queue.partitions(), message, token)`, "outage", "repeats-in-place").loaded(),
	node("sends no MULTI", `this.redis.multi(); //`, `this.redis.pipeline(); //`, "answers", "writes-whole"),
	node("hashes characters, not bytes", `crc32(Buffer.from(message.id))`, `crc32(Buffer.from(message.id, 'latin1'))`, "partitions", "partitions"),
	node("takes payloads for text", `payload: Buffer.from(payload, 'base64')`, `payload: Buffer.from(payload, 'base64').toString()`, "payload", "payload").in("node/conformance.js"),
	node("does not wait for the reply", `const ok = await producer.schedule(`, `const ok = true; producer.schedule(`, "ok-when-stored", "answers-the-truth", "ok-when-stored").in("node/conformance.js"),
	node("sends all at once and disconnects at the end", `for await (const line of createInterface({ input: process.stdin })) {`, `for await (const line of createInterface({ input: process.stdin })) { if (line.includes('m-5')) break;`, "input-ends", "input-ends").in("node/conformance.js"),
	node("has a new token for each try", `await this.#call(partition, message, token)`, `await this.#call(partition, message, randomUUID())`, "repeats-once", "repeats-with-token").loaded(),
	node("takes a refused duplicate for success", `return reply[0] !== 0;`, `return true;`, "duplicate", "answers-the-truth").loaded(),
	node("repeats for 3 s", `patienceMs = 15000`, `patienceMs = 3000`, "outage", "outage"),
	node("loses a header whose value is empty", `Object.entries(headers).map(`, `Object.entries(headers).filter(([, value]) => value).map(`, "headers", "headers"),
}

// sparedProducers are faults that the kit accepts, with the reason.
var sparedProducers = []mutation{
	plainPython("loses the thousandth message", `        refused = []
        count =`, `        refused = []
        self.n = getattr(self, "n", 0) + 1
        if self.n == 1000: return []
        count =`, "answers").spare("no case sends so many"),
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
    for line`, "answers").in("python/conformance.py").spare("it loses nothing: the server closes what has ended"),
}

// shellProducers are faults in the producer in bash.
var shellProducers = []mutation{
	shell("gives the sign of the payload a fixed name", `local body=@$token`, `local body=@payload`, "ids", "ids", "answers-the-truth"),
	shell("asks for the partition at each try", `  if [ -z "$partition" ]; then
`, `  if true; then
`, "outage", "repeats-in-place"),
	shell("adds no wake token", `redis.call("XADD", KEYS[4], "MAXLEN", "1", "*", "due_ms", due)
`, ``, "wakes-each", "wakes-each"),
	shell("keeps all wake tokens", `"XADD", KEYS[4], "MAXLEN", "1", "*"`, `"XADD", KEYS[4], "*"`, "wakes-each", "wakes-each"),
	shell("lets a message expire, inside its script", `redis.call("ZADD", KEYS[3], due, ARGV[1])
`, `redis.call("ZADD", KEYS[3], due, ARGV[1]) redis.call("EXPIRE", KEYS[3], 86400)
`, "no-expiry", "no-expiry"),
	shell("leaves the meta of an ID that comes again", ` else redis.call("HDEL", KEYS[2], ARGV[1]) end`, ` end`, "replace", "replace"),
	shell("ends its payload with a line feed", `base64 -d <<<"$payload" >"$file"`, `{ base64 -d <<<"$payload"; echo; } >"$file"`, "payload", "payload").in("shell/conformance.sh"),
	shell("repeats nothing", `    sleep 0.5
`, `    return 1
`, "request-lost", "request-lost"),
	shell("says ok whatever happened", `    if schedule "${id%.}" "$due" "${fields:+"{${fields#,}}"}" "$file" "$dedup"; then`, `    if schedule "${id%.}" "$due" "${fields:+"{${fields#,}}"}" "$file" "$dedup" || true; then`, "failed-command", "answers-the-truth").in("shell/conformance.sh"),
	shell("has a new token for each try", `"${keys[@]}" "$token" '' 60000`, `"${keys[@]}" "$RANDOM$RANDOM" '' 60000`, "repeats-once", "repeats-with-token").loaded(),
	shell("does not register its queue", `if [ -z "$known" ] &&`, `if false &&`, "registers", "registers").in("shell/duestream.sh"),
	shell("takes the smallest partition count", `[ "$n" -gt "$count" ]; then count=$n`, `[ "$count" = 1 ]; then count=$n`, "partitions-grow", "partitions-grow").in("shell/duestream.sh"),
}

func plainPython(breaks, old, new, one string, rules ...string) mutation {
	return mutation{breaks: breaks, file: "python/producer.py", old: old, new: new, cases: []string{one}, rules: rules}
}

func loadedPython(breaks, old, new, one string, rules ...string) mutation {
	return plainPython(breaks, old, new, one, rules...).loaded()
}

func node(breaks, old, new, one string, rules ...string) mutation {
	return mutation{breaks: breaks, file: "node/producer.js", old: old, new: new, cases: []string{one}, rules: rules}
}

func shell(breaks, old, new, one string, rules ...string) mutation {
	return mutation{breaks: breaks, file: "shell/producer.sh", old: old, new: new, cases: []string{one}, rules: rules}
}

// in sets the file of the text.
func (m mutation) in(file string) mutation {
	m.file = file
	return m
}

// spare sets the reason why the kit accepts it.
func (m mutation) spare(why string) mutation {
	m.spared, m.rules = why, nil
	return m
}

// loaded makes the mutation run with the functions library.
func (m mutation) loaded() mutation {
	m.functions = true
	return m
}
