package stats

// Mix spreads the bits of z over all 64: the step and finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
// generators, OOPSLA 2014). It is a bijection and the same on every machine, so what is derived from it is reproducible; it is no
// cryptographic hash.
func Mix(z uint64) uint64 { return Scatter(z + MixStep) }

// MixStep is what SplitMix64 adds to its state each time.
const MixStep = 0x9e3779b97f4a7c15

// Scatter is the finalizer of SplitMix64 alone: a bijection that leaves 0 where it is.
func Scatter(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
