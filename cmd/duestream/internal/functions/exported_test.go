package functions

// Names for the tests outside of this package.

type LibrariesReport = librariesReport
