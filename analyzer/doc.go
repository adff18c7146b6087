// Package analyzer reads exchanges and says what they mean: the metric table, summaries of runs and recordings, what a trace is like,
// and whether a candidate is worse than a baseline. It opens no socket and keeps no row: one pass, bounded memory.
//
// A latency starts at the scheduled time, so a request that had to wait for a slow server to be sent waits in the figure too; the same
// from the moment it was sent stands beside it. Undefined is null, never 0, and a percentile that the sample cannot know is a dash.
package analyzer
