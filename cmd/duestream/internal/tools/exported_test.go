package tools

// Names for the tests outside of this package.

type LmstfyTally = lmstfyTally

var BenchNames = benchNames

type JobTally = jobTally
