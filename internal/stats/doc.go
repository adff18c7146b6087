// Package stats holds numbers without meaning: quantiles, sketches, moments, correlation, dispersion of counts and resampling. It
// knows nothing of requests; what a figure means is said in package analyzer.
package stats
