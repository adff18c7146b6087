// Package job is a whole replay: a trace and targets in, a run directory out. It plans, probes, calibrates, warms up, replays, watches
// the server and the client meanwhile, and writes down what happened and whether it can be trusted.
package job
