// Package tracing makes OpenTelemetry spans of messages, across their delay, their attempts and the programs that they pass. It
// is the one package of duestream's that links go.opentelemetry.io/otel, of which it uses the API alone: a program brings the SDK
// and an exporter, as for its other spans.
//
//	config := tracing.Config{Provider: otel.GetTracerProvider()}
//	client := tracing.NewClient(bridgeClient, config)                      // a span for each call that schedules
//	worker, err := bridge.NewWorker(tracing.Worker(workerConfig, config)) // spans for each delivery
//
// What goes with a message are its headers traceparent, tracestate and baggage, as W3C has them, so that a producer in any
// language takes part by writing these headers, and a worker by reading them. docs/TRACING.md tells which spans there are.
//
// Invariants:
//   - without a Provider nothing is read, written or spent (TestWithoutProviderNothingIsDone);
//   - no header, however odd, makes a message fail, and none that is added does (FuzzTraceHeaders,
//     TestHeadersThatDoNotFitAreLeftOut);
//   - each attempt is linked to the message's producer and to the last attempt that is known, whoever made it
//     (TestAttemptAfterAKilledWorkerIsLinked);
//   - a span is ended once, also when the handler panics, is cut short or has lost its delivery (TestEveryWayOutEndsTheSpan).
package tracing
