// Package outbox tests package bridge/outbox on PostgreSQL, with database/sql and pgx, and kills everything that takes
// part. It starts Debian's PostgreSQL as a child process.
package outbox
