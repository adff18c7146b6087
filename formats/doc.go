// Package formats holds the Exchange, the one record that recorder, replayer and analyzer share, and traces and runs on disk.
package formats
