package stats

// CUSUM is Page's two-sided cumulative sum of standardized values: it grows by what exceeds the allowance k and alarms past h. The
// reference values k = 0.5 and h = 8 stand a false alarm about once in many thousand values and find a shift of one deviation in about
// sixteen. Source: Page, Biometrika 41 (1954); Montgomery, Introduction to Statistical Quality Control, 9.1.
type CUSUM struct {
	K, H float64
}

// Alarm is where a cumulative sum passed its limit.
type Alarm struct {
	At    int // index of the value that passed the limit
	Since int // index of the first value of the run that led there
	Up    bool
}

// Run returns the first alarm of each excursion, in order. After an alarm the sum starts anew.
func (c CUSUM) Run(z []float64) []Alarm {
	var out []Alarm
	var up, down float64
	upSince, downSince := 0, 0
	for i, v := range z {
		if up = max(0, up+v-c.K); up == 0 {
			upSince = i + 1
		}
		if down = max(0, down-v-c.K); down == 0 {
			downSince = i + 1
		}
		if up > c.H {
			out = append(out, Alarm{i, upSince, true})
			up, upSince = 0, i+1
		}
		if down > c.H {
			out = append(out, Alarm{i, downSince, false})
			down, downSince = 0, i+1
		}
	}
	return out
}
