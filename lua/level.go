package lua

// Level is the protocol level of this release. It stands for the features that a bridge serves. A bridge publishes its
// level in its heartbeat, as "p2", and the library of functions contains it. If a release writes something that bridges
// of the release before do not serve, raise the level, and add a line here. A program that writes something new first
// checks that each live bridge has the required level.
//
//	1  bridges without a level: messages, retries and dead letters. Some serve more, but nobody knows which.
//	2  keys of messages, recurrences, release rates and ready limits, cancelled deliveries, moves between
//	   partitions beside others
const Level = 2

// The levels from which bridges serve a feature.
const (
	LevelKeys        = 2 // messages with a key
	LevelRecurrences = 2
	LevelFlow        = 2 // release rates and ready limits
	LevelCancelled   = 2 // deliveries that are cancelled while a worker holds them
	LevelMoves       = 2 // moves between partitions, beside others that move the same message
)
