package looking

// Names for the tests outside of this package.

const MaxAdvice = maxAdvice

type DoctorReport = doctorReport
