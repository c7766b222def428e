package recurrences

// Names for the tests outside of this package.

type RecurrenceAnswer = recurrenceAnswer
