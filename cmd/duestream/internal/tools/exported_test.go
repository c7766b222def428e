package tools

// Names for the tests outside of this package.

type MigrateTally = migrateTally

var BenchNames = benchNames

type JobTally = jobTally
