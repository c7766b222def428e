package conformance

// What breaks the worker in Python.
var pythonWorkers = []mutation{
	{
		breaks: "acknowledges before it works", file: "python/worker.py",
		old:   "        try:\n            self.handler(m)\n",
		new:   "        self.client.xack(self.queue.key('stream', partition), self.group, m.entry)\n        try:\n            self.handler(m)\n",
		cases: []string{"ack-after-work"}, rules: []string{"acks-after-work"},
	},
	{
		breaks: "trims the stream after each acknowledgement", file: "python/worker.py",
		old:   "            replies = pipe.execute()\n",
		new:   "            replies = pipe.execute()\n            self.client.xtrim(stream, minid=done[-1].entry)\n",
		cases: []string{"deliver"}, rules: []string{"keeps-streams"},
	},
}

// What breaks the worker in Node.js.
var nodeWorkers = []mutation{
	{
		breaks: "reads with NOACK", file: "node/worker.js",
		old:   "'BLOCK', 2000, 'STREAMS'",
		new:   "'BLOCK', 2000, 'NOACK', 'STREAMS'",
		cases: []string{"deliver"}, rules: []string{"acknowledged-reads"},
	},
}

// What breaks the worker in bash.
var shellWorkers = []mutation{
	{
		breaks: "creates a lost group at $", file: "shell/worker.sh",
		old:   "XGROUP CREATE $stream $group 0 MKSTREAM",
		new:   "XGROUP CREATE $stream $group \\$ MKSTREAM",
		cases: []string{"first-start"}, rules: []string{"group-at-zero"},
	},
}
