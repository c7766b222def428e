// Package tracing makes OpenTelemetry spans for messages, across their delay, their attempts and the programs that
// handle them. It is the only package of duestream that imports go.opentelemetry.io/otel. It uses only OpenTelemetry's
// API: the program brings the SDK and an exporter, as for its other spans.
//
//	config := tracing.Config{Provider: otel.GetTracerProvider()}
//	client, err := tracing.NewClient(bridgeClient, config)                 // a span for each call that schedules
//	worker, err := bridge.NewWorker(tracing.Worker(workerConfig, config)) // spans for each delivery
//
// For typed kinds, use SendMiddleware in place of NewClient. For messages of an outbox, use Option.
//
// A message carries its trace in the W3C headers traceparent, tracestate and baggage. A producer in any language takes
// part by writing these headers, and a worker by reading them. docs/guides/tracing.md describes the spans.
//
// Invariants:
//   - without a Provider no header is read or written, at no cost (TestWithoutProviderNothingIsDone);
//   - neither a malformed header nor an added one makes a message fail (FuzzTraceHeaders,
//     TestHeadersThatDoNotFitAreLeftOut);
//   - each attempt is linked to the message's producer and to the last known attempt, by any worker
//     (TestAttemptAfterAKilledWorkerIsLinked);
//   - a span ends once, even if the handler panics, times out or loses its delivery (TestEveryWayOutEndsTheSpan).
package tracing
