// Package client sends one request and follows its answer, over connections of its own that it keeps warm, and knows when the kernel
// received every read. It decides nothing about when or what to send.
package client
