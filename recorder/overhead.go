package recorder

import "math"

// overhead learns what a server adds to the tokens of the texts themselves: a chat template's marks around the conversation and around
// each message, the token that ends an answer. It is a line, constant + slope·parts, by least squares over exchanges whose server counted;
// a template that adds whole tokens is found exactly. The zero value knows nothing and adds nothing.
type overhead struct {
	n                 float64
	parts, added      float64 // sums
	squares, products float64
	known, off        int64 // tokens of the server and by how many the prediction missed them, since there is one
	judged            int64 // exchanges of them
}

const (
	enoughLearned = 5   // exchanges before anything is added
	enoughJudged  = 20  // exchanges before a tokenizer is said to be another model's
	foreignShare  = 0.1 // of the server's tokens, missed
)

// learn takes an exchange of which the server counted known tokens and the tokenizer counted, in so many parts. It returns by how many
// tokens the prediction would have missed the server's; false where there was none yet.
func (o *overhead) learn(known, counted, parts int64) (off int64, judged bool) {
	if judged = o.n >= enoughLearned; judged {
		off = absolute(known - counted - o.add(parts))
		o.known += known
		o.off += off
		o.judged++
	}
	m, d := float64(parts), float64(known-counted)
	o.n++
	o.parts += m
	o.added += d
	o.squares += m * m
	o.products += m * d
	return off, judged
}

// add is how many tokens are to be added to a count of so many parts; 0 before five exchanges were seen.
func (o *overhead) add(parts int64) int64 {
	if o.n < enoughLearned {
		return 0
	}
	mean := o.added / o.n
	spread := o.squares - o.parts*o.parts/o.n
	if spread < 1e-9*max(o.squares, 1) { // all had as many parts
		return int64(math.Round(mean))
	}
	slope := (o.products - o.parts*o.added/o.n) / spread
	return int64(math.Round(mean + slope*(float64(parts)-o.parts/o.n)))
}

// each is add where all of it belongs to the parts, as the tokens do that end answers.
func (o *overhead) each(parts int64) int64 {
	if o.n < enoughLearned || o.parts == 0 {
		return 0
	}
	return parts * int64(math.Round(o.added/o.parts))
}

// foreign reports whether the tokenizer is of another model, as far as this can be seen.
func (o *overhead) foreign() bool {
	return o.judged >= enoughJudged && float64(o.off) > foreignShare*float64(o.known)
}

func absolute(n int64) int64 {
	if n < 0 {
		return -n
	}
	return n
}
