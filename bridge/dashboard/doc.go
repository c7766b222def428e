// Package dashboard is a web page for operators: an http.Handler that shows the queues of a prefix and changes them.
//
//	d, err := dashboard.New(dashboard.Config{Redis: redis, Access: store})
//	defer d.Close()
//	mux.Handle("/ops/queues/", http.StripPrefix("/ops/queues", d))
//
// The pages are rendered on the server, from package bridge/admin. All links are relative and one level deep, so the
// handler works below any path, also behind a proxy that strips the path. A caller logs in with the secret of a token
// of package bridge/access. The verb inspect shows pages, operate also changes queues, and publish creates, cancels and
// moves messages. The server checks each request, and writes a line of the audit log for each change.
//
// Invariants:
//   - a GET request changes nothing (TestGetChangesNothing);
//   - a token sees and changes only its queues (TestEveryRouteEnforcesTheToken);
//   - text of a producer is never markup (TestHostileTextsAreText);
//   - the number of viewers does not change the load on Redis (TestViewersShareOneLook);
//   - viewers share one reading of dead letters, which is bounded (TestViewersShareOneReadingOfLetters,
//     TestDeadOfManyLettersIsBounded);
//   - a change of all dead letters that match touches only those that were counted (TestAllThatMatchAreCountedFirst);
//   - an idle page costs Redis two requests a second at most (TestAnIdlePageCostsTwoRequestsASecond).
package dashboard
