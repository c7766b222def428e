package servers

// Names for the tests outside of this package.

type AddedToken = addedToken
type HealthState = healthState

var CheckAnswers = checkAnswers
