// Package replayer sends a schedule's requests to a candidate, open loop, and measures what comes back: schedule -> prompts -> client ->
// exchanges. Nothing here waits for an answer before it sends the next request, and everything that was late, dropped or retried is
// counted, because a load generator that slows down with its target measures itself. The parts stand in packages of their own; job puts
// them together.
package replayer
