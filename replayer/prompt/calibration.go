package prompt

// Calibration says how text becomes tokens on a server: a prompt of w of its words has Overhead + w × TokensPerWord tokens.
type Calibration struct {
	Words         []string // none: the built-in list
	TokensPerWord float64  // 0: 1
	Overhead      float64  // tokens of the chat template, or of a beginning-of-text token
	PerMessage    float64  // tokens of the template around each message but the first
	// Tools add ToolOverhead + bytes × TokensPerToolByte tokens. 0: the server was not asked, or takes none.
	TokensPerToolByte, ToolOverhead float64
	Method                          string // tokenize, usage, or none
}

func (c *Calibration) defaults() {
	if len(c.Words) == 0 {
		c.Words = Words
	}
	if c.TokensPerWord == 0 {
		c.TokensPerWord = 1
	}
}
