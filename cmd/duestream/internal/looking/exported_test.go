package looking

// Names for the tests outside of this package.

const MostAdvice = mostAdvice

type DoctorReport = doctorReport
