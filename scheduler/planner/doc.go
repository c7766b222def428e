// Package planner keeps the recurrences of queues in Redis, and turns their next occurrences into ordinary scheduled messages.
//
// A Planner writes, lists and removes them for clients and operators. A Queue is what a bridge has for each queue of its own that
// has recurrences: it plans ahead, so that an occurrence is in the schedule long before it is due, and whoever drains it then is
// on time. Any number may plan the same queue at the same time: what is remembered of a recurrence moves on in the script that
// adds its occurrences, and only from where the planner saw it.
//
// Invariants:
//   - an occurrence is planned once, by any number of planners (TestManyPlannersPlanEachOccurrenceOnce);
//   - a clock that was ahead stops nothing when it is set back, and none has an occurrence planned twice
//     (TestNoClockPlansTwiceNorStops);
//   - what nobody planned in time is made up for as the spec says (TestMissedOccurrences);
//   - with overlap skip none is planned while something is left of the one before (TestOverlapSkipWaitsForTheOneBefore,
//     TestOverlapSkipKnowsAllThatIsLeft);
//   - a spec that any client writes with HSET is planned, and one that is wrong stops no other (TestSpecsOfPlainClients).
package planner
