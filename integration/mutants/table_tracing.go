package main

// tracingMutants are about traces.
var tracingMutants = []mutant{
	{
		name: "an action with half a traceparent is taken", file: "lua/retry.lua",
		old:  " or #trace ~= 55 then",
		new:  " then",
		test: []string{"-run", "TestActionsThatDoNotParse", "./lua"},
	},
	{
		name: "a trace makes too many headers", file: "bridge/tracing/headers.go",
		old:  "case len(all) >= lua.MaxHeaders, len(value)",
		new:  "case len(value)",
		test: []string{"-run", "TestHeadersThatDoNotFit", "./bridge/tracing"},
	},
	{
		name: "a trace makes headers too large", file: "bridge/tracing/headers.go",
		old:  "bytes+len(name)+len(value) > lua.MaxHeaderBytes:",
		new:  "false:",
		test: []string{"-run", "TestHeadersThatDoNotFit", "./bridge/tracing"},
	},
	{
		name: "the caller's headers are written to", file: "bridge/tracing/headers.go",
		old:  "all := maps.Clone(headers)",
		new:  "all := headers",
		test: []string{"-run", "TestHeadersThatDoNotFit", "./bridge/tracing"},
	},
	{
		name: "a delivery is in the trace of who runs the worker", file: "bridge/tracing/headers.go",
		old:  "ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{})",
		new:  "",
		test: []string{"-run", "TestMessageWithoutATrace", "./bridge/tracing"},
	},
	{
		name: "an attempt is not linked to its producer", file: "bridge/tracing/worker.go",
		old:  "if root && origin.IsValid() {",
		new:  "if false {",
		test: []string{"-run", "TestAttemptIsATrace", "./bridge/tracing"},
	},
	{
		name: "a settled delivery stays in memory", file: "bridge/tracing/worker.go",
		old:  "w.attempts.LoadAndDelete(m)",
		new:  "w.attempts.Load(m)",
		test: []string{"-run", "TestSettledDeliveries", "./bridge/tracing"},
	},
	{
		name: "a due time in seconds makes a span of fifty years", file: "bridge/tracing/worker.go",
		old:  "if m.Due.Before(earliest) || ",
		new:  "if m.Due.IsZero() || ",
		test: []string{"-run", "TestMessageWithoutATrace", "./bridge/tracing"},
	},
}
