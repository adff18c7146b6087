// Package replayer sends a trace's requests to a candidate, open loop, and measures what comes back: schedule -> prompts -> client ->
// exchanges. Nothing here waits for an answer before it sends the next request, and everything that was late, dropped or retried is
// counted, because a load generator that slows down with its target measures itself.
package replayer
