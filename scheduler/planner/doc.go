// Package planner stores the recurrences of queues in Redis, and schedules their next occurrences as ordinary messages.
//
// A Planner writes, lists and removes recurrences for clients and operators. A bridge has a Queue for each owned queue
// with recurrences. It plans ahead: an occurrence is in the schedule long before it is due, so its drain is on time.
// Any number of Queues may plan the same queue at the same time: the script that adds occurrences also advances the
// plan, and only if the plan is still the one that the Queue has read.
//
// Invariants:
//   - an occurrence is planned once, by any number of planners (TestManyPlannersPlanEachOccurrenceOnce);
//   - a user's message with the ID of an occurrence takes the place of the occurrence, in whichever partition it is
//     (TestAMessageOfAnyPartitionTakesThePlaceOfAnOccurrence);
//   - a recurrence that looks through a large queue delays no other one (TestALongWalkDelaysNoOtherRecurrence);
//   - a server that is away delays no recurrence of a queue whose recurrences are on another server
//     (TestARegistryThatIsAwayDelaysNoOccurrence, TestAPartitionThatIsAwayDelaysNoOtherRecurrence);
//   - setting back a clock that was ahead stops no recurrence, and plans no occurrence twice
//     (TestNoClockPlansTwiceNorStops);
//   - occurrences that nobody planned in time are made up for as the spec says (TestMissedOccurrences);
//   - with overlap skip no occurrence is planned while anything of the last one is unfinished
//     (TestOverlapSkipWaitsForTheOneBefore, TestOverlapSkipKnowsAllThatIsLeft);
//   - a spec that any client writes with HSET is planned, and an invalid one stops no other (TestSpecsOfPlainClients).
package planner
