// Package gateway is duestream over HTTP: /v1, for programs that may not talk to Redis. docs/HTTP.md describes it for those who
// call it, and openapi.json for their tools; GET /v1/openapi.json answers with that document.
//
//	store, err := access.Open(access.Config{Client: redis.Client})
//	g, err := gateway.New(gateway.Config{Redis: redis, Access: store})
//	server := gateway.NewServer(g)
//	err = server.ListenAndServe()
//
// Invariants:
//   - Whatever changes a message's state goes through bridge.Client or admin.Admin.
//   - The table routes holds every route with what its caller must be allowed to do, and openapi.json describes the same ones
//     (TestTheDocumentAndTheTableHoldTheSameRoutes). No route does anything for a caller without the right token
//     (TestNoRouteDoesAnythingWithoutTheRightToken).
//   - No answer holds a secret, an address of Redis or the text of an error that is not ours; a problem names no payload
//     (TestAProblemTellsNothingThatIsNotTheCallers).
package gateway
