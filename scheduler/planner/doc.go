// Package planner stores the recurrences of queues in Redis, and schedules their next occurrences as ordinary messages.
//
// A Planner writes, lists and removes recurrences for clients and operators. A bridge has a Queue for each owned queue
// with recurrences. It plans ahead: an occurrence is in the schedule long before it is due, so its drain is on time.
// Any number of Queues may plan the same queue at the same time: the script that adds occurrences also advances the
// plan, and only if the plan is still the one that the Queue has read.
//
// Invariants:
//   - an occurrence is planned once, by any number of planners (TestManyPlannersPlanEachOccurrenceOnce);
//   - a message of a user that has the ID of an occurrence takes its place, whatever its partition
//     (TestAMessageOfAnyPartitionTakesThePlaceOfAnOccurrence);
//   - a recurrence that looks through a large queue delays no other one (TestALongWalkDelaysNoOtherRecurrence);
//   - servers that do not hold the recurrences of a queue delay none of them when they are away
//     (TestARegistryThatIsAwayDelaysNoOccurrence, TestAPartitionThatIsAwayDelaysNoOtherRecurrence);
//   - setting back a clock that was ahead stops no recurrence, and plans no occurrence twice
//     (TestNoClockPlansTwiceNorStops);
//   - occurrences that nobody planned in time are made up for as the spec says (TestMissedOccurrences);
//   - with overlap skip no occurrence is planned while anything of the last one is unfinished
//     (TestOverlapSkipWaitsForTheOneBefore, TestOverlapSkipKnowsAllThatIsLeft);
//   - a spec that any client writes with HSET is planned, and an invalid one stops no other (TestSpecsOfPlainClients).
package planner
