// Package gateway serves duestream over HTTP, under /v1, for programs that may not connect to Redis.
// docs/reference/http.md describes the API for people, and openapi.json for tools. GET /v1/openapi.json returns that
// document.
//
//	store, err := access.Open(access.Config{Client: redis.Client})
//	g, err := gateway.New(gateway.Config{Redis: redis, Access: store})
//	err = lmstfy.Mount(g) // if programs use lmstfy's API
//	go g.Run(ctx)
//	server := gateway.NewServer(g)
//	err = server.ListenAndServe()
//
// Invariants:
//   - Every change of a message's state goes through bridge.Client, admin.Admin or pull.Puller.
//   - The table routes holds every route with the verb that its caller needs. openapi.json describes the same routes
//     (TestTheDocumentAndTheTableHoldTheSameRoutes). No route does anything for a caller without the right token
//     (TestNoRouteDoesAnythingWithoutTheRightToken).
//   - No answer holds a secret, an address of Redis or the text of another program's error. No problem shows a payload
//     (TestAProblemTellsNothingThatIsNotTheCallers).
package gateway
