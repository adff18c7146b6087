package experiment

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/shadowtape/shadowtape/internal/experiment/verdict"
)

// ruleFile is gate.yaml: what differs from the defaults, by metric.
type ruleFile struct {
	Metrics map[string]struct {
		Tolerance string `yaml:"tolerance"`
		Minimum   string `yaml:"minimum"`
		Gate      *bool  `yaml:"gate"`
	} `yaml:"metrics"`
}

// LoadRules reads a gate.yaml and applies it to metrics: tolerance and minimum as 5% or 0.05, gate as true or false. An unknown metric or
// field is an error.
func LoadRules(path string, metrics []verdict.Metric) ([]verdict.Metric, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	var f ruleFile
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil {
		why := strings.ReplaceAll(strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml: "), "unmarshal errors:\n  "), "\n  ", "; ")
		if errors.Is(err, io.EOF) {
			why = "it is empty"
		}
		return nil, fmt.Errorf("read rules %s: %s: want metrics: {ttft: {tolerance: 5%%, minimum: 2%%, gate: true}}", path, strings.ReplaceAll(why, "experiment.ruleFile", "rules"))
	}
	out := slices.Clone(metrics)
	for name, r := range f.Metrics {
		m, err := metricOf(out, name)
		if err != nil {
			return nil, fmt.Errorf("read rules %s: %w", path, err)
		}
		for _, v := range []struct {
			text string
			to   *float64
		}{{r.Tolerance, &m.Tolerance}, {r.Minimum, &m.Minimum}} {
			if v.text == "" {
				continue
			}
			if *v.to, err = parseShare(v.text); err != nil {
				return nil, fmt.Errorf("read rules %s: %s: %w", path, name, err)
			}
		}
		if r.Gate != nil {
			m.Gate = *r.Gate
		}
	}
	for _, m := range out {
		if m.Gate && m.Better == "" {
			return nil, fmt.Errorf("read rules %s: %s explains and has no better and worse: it cannot gate", path, m.Name)
		}
	}
	if !slices.ContainsFunc(out, func(m verdict.Metric) bool { return m.Gate }) {
		return nil, fmt.Errorf("read rules %s: no metric gates: there would be no verdict", path)
	}
	return out, verdict.Options{Metrics: out}.Validate()
}

// ParseTolerances applies ttft=5%,tpot=3%:1% to metrics: the tolerance, and after a colon the smallest change that counts.
func ParseTolerances(text string, metrics []verdict.Metric) ([]verdict.Metric, error) {
	out := slices.Clone(metrics)
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		name, value, ok := strings.Cut(part, "=")
		if !ok {
			return nil, fmt.Errorf("tolerance %q: want METRIC=5%% or METRIC=5%%:2%%", part)
		}
		m, err := metricOf(out, name)
		if err != nil {
			return nil, fmt.Errorf("tolerance %q: %w", part, err)
		}
		tolerance, minimum, both := strings.Cut(value, ":")
		if m.Tolerance, err = parseShare(tolerance); err == nil && both {
			m.Minimum, err = parseShare(minimum)
		}
		if err != nil {
			return nil, fmt.Errorf("tolerance %q: %w", part, err)
		}
		m.Minimum = min(m.Minimum, m.Tolerance)
	}
	return out, verdict.Options{Metrics: out}.Validate()
}

func metricOf(metrics []verdict.Metric, name string) (*verdict.Metric, error) {
	var names []string
	for i := range metrics {
		if metrics[i].Name == name {
			return &metrics[i], nil
		}
		if metrics[i].Better != "" {
			names = append(names, metrics[i].Name)
		}
	}
	return nil, fmt.Errorf("there is no metric %q: %s", name, strings.Join(names, ", "))
}

// parseShare reads 5% or 0.05.
func parseShare(s string) (float64, error) {
	number, percent := strings.CutSuffix(strings.TrimSpace(s), "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || !(v > 0) {
		return 0, fmt.Errorf("%q is not a share such as 5%%", s)
	}
	if percent {
		v /= 100
	}
	if v >= 1 {
		return 0, errors.New("a share of 100 % or more is no tolerance")
	}
	return v, nil
}
