package workers

// Names for the tests outside of this package.

type PushChanged = pushChanged
type PushTarget = pushTarget
