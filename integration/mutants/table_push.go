package main

// pushMutants are about callbacks: where a request may go, and what a target that is down costs.
var pushMutants = []mutant{
	{
		name: "commands of who may not MULTI are executed", file: "lua/transact.go",
		old:  "\t\treturn false, Classify(\"MULTI\", err)\n",
		new:  "\t\t_ = err\n",
		test: []string{"-run", "TestATransactionThatIsRefused", "./lua"},
	},
	{
		name: "what waits for a target's rate uses up an attempt", file: "bridge/push/ratelimit.go",
		old:  "return bridge.Release(err)",
		new:  "return err",
		test: []string{"-run", "TestNothingIsTakenBeforeTheRateAllowsIt|TestProcessesShareTheRate", "-count", "3", "./bridge/push"},
	},
	{
		name: "messages are taken before their target's rate allows them", file: "stream/reader.go",
		old:  "if p.cfg.Admit == nil {",
		new:  "if p.cfg.Admit == nil || true {",
		test: []string{"-run", "TestNothingIsTakenBeforeTheRateAllowsIt", "./bridge/push"},
	},
	{
		name: "a key whose reply was lost is another one", file: "bridge/push/store.go",
		old:  "slices.Contains(old.Keys, made)",
		new:  "false",
		test: []string{"-run", "TestAKeyWhoseReplyIsLostIsTold", "./bridge/push"},
	},
	{
		name: "targets that could not be read are stopped", file: "bridge/push/runner.go",
		old:  "return !there && found.unread[at.queue] == nil",
		new:  "return !there",
		test: []string{"-run", "TestAMasterThatIsAwayKeepsNoTarget", "./bridge/push"},
	},
	{
		name: "a new worker does not know the defaults that its process has read", file: "bridge/worker.go",
		old:  "cfg.Redis.policyReader(withPrefix(cfg.Prefix))",
		new:  "stream.NewPolicyReader(withPrefix(cfg.Prefix))",
		test: []string{"-run", "TestAMasterOfTheDefaultsThatIsAway", "./bridge/push"},
	},
	{
		name: "any address is dialled", file: "bridge/push/guard.go",
		old:  "if err != nil || !t.mayDial(at.Addr()) {",
		new:  "if err != nil || !at.IsValid() {",
		test: []string{"-run", "TestPrivateAddressesAreRefused|TestANameThatChanges", "./bridge/push"},
	},
	{
		name: "an address that is mapped into IPv6 is not seen through", file: "bridge/push/guard.go",
		old:  "addr = addr.Unmap().WithZone(\"\")",
		new:  "addr = addr.WithZone(\"\")",
		test: []string{"-run", "TestPrivateAddressesAreRefused", "./bridge/push"},
	},
	{
		name: "requests go through a proxy", file: "bridge/push/guard.go",
		old:  "Proxy: nil,",
		new:  "Proxy: http.ProxyFromEnvironment,",
		test: []string{"-run", "TestNoProxyIsUsed", "./bridge/push"},
	},
	{
		name: "redirects are followed", file: "bridge/push/post.go",
		old:  "p.transport.RoundTrip(r)",
		new:  "(&http.Client{Transport: p.transport}).Do(r)",
		test: []string{"-run", "TestRedirectsAreNotFollowed", "./bridge/push"},
	},
	{
		name: "what follows another protocol is read as a body", file: "bridge/push/post.go",
		old:  "if a.status == http.StatusSwitchingProtocols {",
		new:  "if a.status == 0 {",
		test: []string{"-run", "TestNoTargetHoldsASlot", "-timeout", "20s", "./bridge/push"},
	},
	{
		name: "a probe goes over the connection that is dead", file: "bridge/push/runner.go",
		old:  "\t\ts.poster.close() //",
		new:  "\t\t//",
		test: []string{"-run", "TestAProbeUsesANewConnection", "-timeout", "20s", "./bridge/push"},
	},
	{
		name: "a probe uses up an attempt", file: "bridge/push/circuit.go",
		old:  "\treturn down\n",
		new:  "\treturn false\n",
		test: []string{"-run", "TestCircuit", "./bridge/push"},
	},
	{
		name: "an open circuit takes as many messages as a closed one", file: "bridge/push/runner.go",
		old:  "\t\tslots = min(slots, probes)\n",
		new:  "\t\tslots *= 2\n",
		test: []string{"-run", "TestCircuitOpensUsesNoAttempts", "./bridge/push"},
	},
	{
		name: "targets are changed without a look at who else does", file: "lua/set_target.lua",
		old:  "if now ~= before or now == ''",
		new:  "if now == ''",
		test: []string{"-run", "TestChangesAtTheSameTime", "./bridge/push"},
	},
	{
		name: "a full server refuses targets", file: "lua/set_target.lua",
		old:  "redis.call('HDEL', push, SEP) -- removes nothing; after this write a full server accepts the others\n",
		new:  "",
		test: []string{"-run", "TestAFullServerHasTargetsAddedRotatedAndRemoved", "./bridge/push"},
	},
	{
		name: "the environment turns pushing on in spite of the flag", file: "cmd/duestream/internal/flags/switch.go",
		old:  "\t\treturn f.on\n",
		new:  "\t\treturn f.on || otherwise\n",
		test: []string{"-run", "TestPushIsTurnedOffByTheFlag", "./cmd/duestream/internal/servers"},
	},
}
