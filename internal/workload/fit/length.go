package fit

import (
	"fmt"
	"math"
	"sort"

	"github.com/shadowtape/shadowtape/internal/workload"
)

// z99 is the 99th percentile of the normal law.
const z99 = 2.3263478740408408

// Length fits a parametric family to values, by its moments or quantiles: exponential and gamma by the mean (and CV), lognormal by the
// median and the standard deviation of logarithms, mixture by a lognormal below the 95th percentile and Hill's exponent above it.
// Table keeps up to 1,000 means of equal parts of the sorted values. It sorts values.
func Length(family string, values []float64) (workload.Length, error) {
	if len(values) == 0 {
		return workload.Length{}, fmt.Errorf("fit length %s: no values", family)
	}
	sort.Float64s(values)
	n := float64(len(values))
	mean, square, logs, logSquare := 0.0, 0.0, 0.0, 0.0
	for _, v := range values {
		mean += v / n
		square += v * v / n
		logs += math.Log(max(v, 1)) / n
		logSquare += math.Log(max(v, 1)) * math.Log(max(v, 1)) / n
	}
	l := workload.Length{Family: family, Max: values[len(values)-1]}
	sigma := math.Sqrt(max(logSquare-logs*logs, 0))
	switch family {
	case workload.Fixed, workload.Exponential:
		l.Mean = mean
	case workload.GammaLength:
		l.Mean, l.CV = mean, max(math.Sqrt(max(square-mean*mean, 0))/mean, 1e-3)
	case workload.Lognormal:
		l.P50 = math.Exp(logs)
		l.P99 = l.P50 * math.Exp(z99*sigma)
	case workload.Mixture:
		cut := int(0.95 * n)
		l.Share, l.Min = 1-float64(cut)/n, values[min(cut, len(values)-1)]
		hill := 0.0
		for _, v := range values[cut:] {
			hill += math.Log(v / l.Min)
		}
		l.Alpha = math.Min(50, max(n-float64(cut), 1)/max(hill, 1e-9))
		body, err := Length(workload.Lognormal, append([]float64(nil), values[:max(cut, 1)]...))
		if err != nil {
			return l, err
		}
		l.P50, l.P99 = body.P50, body.P99
	case workload.Table:
		l.Values = workload.Condense(values, 1000)
	default:
		return l, fmt.Errorf("fit length %q: there are fixed, exponential, gamma, lognormal, mixture and table", family)
	}
	return l, l.Validate()
}
