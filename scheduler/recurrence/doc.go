// Package recurrence says when something that recurs is due: by a cron expression in a time zone, or every so often. It knows no
// Redis, and no clock.
//
// The policy where clocks are set, for expressions that name hours:
//   - an occurrence whose time of day does not exist that day (a gap) is at the end of the gap; several of one gap are one;
//   - one whose time of day comes twice (a repeated hour) is at the first of the two;
//   - a date that a zone left out as a whole has no occurrences.
//
// An expression that is for every hour follows the time that passes instead: */30 recurs each half hour, through gaps and through
// both of a repeated hour.
//
// Invariants:
//   - the policy holds in every zone, for each second of a year (TestAYearInEightZones);
//   - no expression panics or hangs, nor is there one whose next occurrence is not later (FuzzCron);
//   - a spec survives its JSON (TestSpecSurvivesItsJSON).
package recurrence
