package analyzer

import (
	"fmt"
	"sort"
	"strconv"
	"strings"

	"github.com/shadowtape/shadowtape/formats"
)

// maxGroups is how many values of a column are told apart; the rest is counted together.
const maxGroups = 50

const otherGroups = "(other)"

// inputEdges cut input lengths into classes.
var inputEdges = []int64{512, 2048, 8192}

// breakdown is a column that a summary can be split by.
type breakdown struct {
	column formats.Column
	value  func(*formats.Exchange) string
}

// breakdowns are the columns of --by, by name.
var breakdowns = map[string]breakdown{
	"model":          {formats.ColRequestModel, func(x *formats.Exchange) string { return x.RequestModel }},
	"response_model": {formats.ColResponseModel, func(x *formats.Exchange) string { return x.ResponseModel }},
	"endpoint":       {formats.ColEndpoint, func(x *formats.Exchange) string { return string(x.Endpoint) }},
	"server":         {formats.ColServerID, func(x *formats.Exchange) string { return x.ServerID }},
	"node":           {formats.ColNode, func(x *formats.Exchange) string { return x.Node }},
	"finish_reason":  {formats.ColFinishReason, func(x *formats.Exchange) string { return x.FinishReason }},
	"error_kind":     {formats.ColErrorKind, func(x *formats.Exchange) string { return x.ErrorKind }},
	"stream": {formats.ColStream, func(x *formats.Exchange) string {
		if !x.Stream.Valid {
			return ""
		}
		return strconv.FormatBool(x.Stream.V)
	}},
	"tenant": {formats.ColTenantID, func(x *formats.Exchange) string {
		if !x.TenantID.Valid {
			return ""
		}
		return fmt.Sprintf("%x", x.TenantID.V[:])
	}},
	"status": {formats.ColStatus, func(x *formats.Exchange) string {
		if !x.Status.Valid {
			return ""
		}
		return strconv.Itoa(int(x.Status.V))
	}},
	"input": {formats.ColInputTokens, func(x *formats.Exchange) string {
		if !x.InputTokens.Valid {
			return ""
		}
		for i, edge := range inputEdges {
			if x.InputTokens.V < edge {
				if i == 0 {
					return fmt.Sprintf("below %d", edge)
				}
				return fmt.Sprintf("%d to %d", inputEdges[i-1], edge-1)
			}
		}
		return fmt.Sprintf("%d and above", inputEdges[len(inputEdges)-1])
	}},
}

// Breakdowns names what a summary can be split by, sorted.
func Breakdowns() []string { return sortedKeys(breakdowns) }

// findBreakdown takes a short name (model) or the column's own (request_model).
func findBreakdown(name string) (breakdown, error) {
	if b, ok := breakdowns[name]; ok {
		return b, nil
	}
	for _, b := range breakdowns {
		if string(b.column) == name {
			return b, nil
		}
	}
	return breakdown{}, fmt.Errorf("by: there is no column %q to split by; there are %s", name, strings.Join(Breakdowns(), ", "))
}

// Group is the part of a run whose rows share a value. Its rates are over the whole run's window.
type Group struct {
	Value      string             `json:"value"` // "" is unknown, "(other)" what came after the most frequent
	Requests   Requests           `json:"requests"`
	Metrics    map[string]Figures `json:"metrics"`
	Aggregates map[string]Value   `json:"aggregates"`
	Errors     map[string]int64   `json:"errors"`
}

// frequent counts a column's values and keeps the most frequent, so that memory is bounded whatever the column holds.
func frequent(r *Run, b breakdown, columns []formats.Column) (map[string]bool, error) {
	counts := make([]map[string]int64, workers())
	err := r.each(columns, workers(), func(w int) func(*formats.Exchange) {
		counts[w] = map[string]int64{}
		return func(x *formats.Exchange) { counts[w][b.value(x)]++ }
	})
	if err != nil {
		return nil, err
	}
	all := map[string]int64{}
	for _, c := range counts {
		for k, n := range c {
			all[k] += n
		}
	}
	values := sortedKeys(all)
	sort.SliceStable(values, func(i, j int) bool { return all[values[i]] > all[values[j]] })
	keep := map[string]bool{}
	for i, v := range values {
		if i == maxGroups {
			break
		}
		keep[v] = true
	}
	return keep, nil
}
