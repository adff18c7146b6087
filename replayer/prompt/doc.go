// Package prompt makes the bodies of requests: of the recorded length and prefix structure, with the recorded parameters, and of no
// recorded text. It knows no network: what a server counts is given to it as a Calibration.
package prompt
