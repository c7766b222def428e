// Package migrate tests the commands below `duestream migrate` with jobs that the libraries themselves make: see
// directory jobs, which is a module of its own.
package migrate
