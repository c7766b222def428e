package command

// Names for the tests outside of this package.

type ErrorAnswer = errorAnswer
