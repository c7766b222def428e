package lua

// Level is the protocol level of this release: what its bridges serve. A bridge publishes it in its heartbeat, as "p2";
// the library of functions carries it. Raise it, and add a line here, when a release writes something that bridges of
// the release before do not serve. A program that writes such a thing first checks that each live bridge has the
// required level.
//
//	1  bridges without a level: messages, retries and dead letters. Some serve more, but nobody knows which.
//	2  keys of messages, recurrences, release rates and ready limits, cancelled deliveries
const Level = 2

// The levels from which bridges serve a feature.
const (
	LevelKeys        = 2 // messages with a key
	LevelRecurrences = 2
	LevelFlow        = 2 // release rates and ready limits
	LevelCancelled   = 2 // deliveries that are cancelled while a worker holds them
)
