package analyzer

import "github.com/shadowtape/shadowtape/internal/figure"

// Cost is what output tokens cost at the rate that was measured. Below saturation it is the price of idle GPUs too: the cost at the highest
// rate within the SLO is the capacity's.
type Cost struct {
	GPUs                   int     `json:"gpus"`
	GPUHourPrice           float64 `json:"gpu_hour_price"`
	PerMillionOutputTokens Null    `json:"per_million_output_tokens"`
	Saturated              Null    `json:"per_million_output_tokens_saturated"` // at the capacity; null where the run was not saturated
}

func costOf(o Options, gpus int, outputRate, capacity Null) *Cost {
	if o.GPUHourPrice <= 0 {
		return nil
	}
	c := &Cost{GPUs: max(gpus, 1), GPUHourPrice: o.GPUHourPrice}
	c.PerMillionOutputTokens = c.at(outputRate)
	if capacity.Valid {
		c.Saturated = c.at(figure.Known(capacity.V * float64(c.GPUs)))
	}
	return c
}

// at is the cost of a million output tokens at a rate per second.
func (c *Cost) at(outputRate Null) Null {
	if !outputRate.Valid || outputRate.V <= 0 {
		return Null{}
	}
	return figure.Known(float64(c.GPUs) * c.GPUHourPrice / 3600 / outputRate.V * 1e6)
}

// hoursPerMonth is 365.25 days of 24 hours over twelve months.
const hoursPerMonth = 730.5

// FleetCost is what the difference between two saturated runs costs a fleet in a month. Below saturation an open loop's rate of tokens is an
// input and says nothing about how many GPUs a load needs, so the change is null and Reason says why.
type FleetCost struct {
	FleetGPUs      int     `json:"fleet_gpus"`
	GPUHourPrice   float64 `json:"gpu_hour_price"`
	ChangePerMonth Null    `json:"change_per_month"`
	Reason         string  `json:"reason,omitempty"`
}

func fleetCost(gpus int, price float64, a, b Summary) *FleetCost {
	if gpus <= 0 || price <= 0 {
		return nil
	}
	f := &FleetCost{FleetGPUs: gpus, GPUHourPrice: price}
	for _, s := range []Summary{a, b} {
		if w := s.Aggregates["server_waiting_mean"].Value; !w.Valid || w.V < 1 {
			f.Reason = s.Label + " was not saturated: its token rate is the load's, not the service's"
			return f
		}
	}
	x, y := a.Aggregates["output_rate"].Value, b.Aggregates["output_rate"].Value
	if x.V > 0 && y.V > 0 {
		f.ChangePerMonth = figure.Known(float64(gpus) * price * hoursPerMonth * (x.V/y.V - 1))
	}
	return f
}

// gpusOf is how many GPUs served a run: as given, as the manifest's deployment says, as many as were watched, or 0.
func gpusOf(r *Run, o Options, watched int) int {
	if o.GPUs > 0 {
		return o.GPUs
	}
	if r.Manifest != nil {
		for _, at := range []string{"deployment", "candidate"} {
			if d, ok := r.Manifest.Environment[at].(map[string]any); ok {
				if list, ok := d["gpu_uuids"].([]any); ok && len(list) > 0 {
					return len(list)
				}
			}
		}
	}
	return watched
}

// fewestSaturated is for how many of a chart's intervals in a row the server must have had a queue for their rate to be called its capacity.
const fewestSaturated = ChartBins / 20

// saturatedRate is the output tokens per second of a saturated service: what the replay's own phase found, else the mean over the longest
// stretch in which every reading of the server's queue was at least one; null where it was too short.
func saturatedRate(r *Run, c *Charts) Null {
	if r.Manifest != nil {
		if phase, ok := r.Manifest.Fidelity["capacity"].(map[string]any); ok {
			if rate, ok := phase["output_tokens_per_s"].(float64); ok && rate > 0 {
				return figure.Known(rate)
			}
		}
	}
	if c == nil {
		return Null{}
	}
	output := c.Time["output_rate"]
	var longest Points
	from := 0
	for i := 0; i <= len(output); i++ {
		if i < len(output) && i < len(c.queue) && c.queue[i] >= 1 && finite(output[i]) {
			continue
		}
		if i-from > len(longest) {
			longest = output[from:i]
		}
		from = i + 1
	}
	if len(longest) < fewestSaturated {
		return Null{}
	}
	return figure.Known(sumOf(longest) / float64(len(longest)))
}
