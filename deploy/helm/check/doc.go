// Package check tests the chart deploy/helm/duestream: it renders the chart with several files of values, and compares
// the objects with the types of Kubernetes, with the settings and flags of the command, and with the rules and the
// board of deploy. It needs neither a cluster nor a network: `make helm-check`.
package check
