package replayer

// stamper tells when the kernel received the newest of the bytes that the last read returned.
type stamper interface {
	// received converts the kernel's stamp to the run's clock; now is the same clock after the read. ok is false where there is no
	// stamp or where it cannot be trusted.
	received(clk clock, now int64) (at int64, ok bool)
}
