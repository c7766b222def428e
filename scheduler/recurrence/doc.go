// Package recurrence computes the occurrences of a recurrence: by a cron expression in a time zone, or at a fixed
// interval. It uses neither Redis nor a clock.
//
// The policy for changes of the clocks, for expressions that name hours:
//   - an occurrence whose time of day does not exist that day (a gap) is at the end of the gap; several in one gap are
//     one;
//   - an occurrence whose time of day exists twice (a repeated hour) is at the first of the two;
//   - a date that a zone skips has no occurrences.
//
// An expression that matches every hour follows elapsed time instead: */30 recurs each half hour, through gaps and
// through both passes of a repeated hour.
//
// Invariants:
//   - the policy holds in every zone, for each second of a year (TestAYearInEightZones);
//   - no expression panics or hangs, and each occurrence is later than the one before (FuzzCron);
//   - a spec survives its JSON (TestSpecSurvivesItsJSON).
package recurrence
