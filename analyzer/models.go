package analyzer

import (
	"fmt"

	"github.com/shadowtape/shadowtape/analyzer/occupancy"
	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/figure"
	"github.com/shadowtape/shadowtape/internal/promtext"
)

// The models' figures, which package occupancy makes.
type (
	Pages = occupancy.Pages
	Mix   = occupancy.Mix
)

// Sizes are what the page model needs to know of the server; a zero is unknown.
type Sizes struct {
	BlockSize int   // tokens in a page
	Pages     int64 // of the cache, of all servers together
}

const assumedBlockSize = 16 // vLLM's default

// findSizes takes the page size and capacity from the options, the server's own page, or the manifest, in this order.
func findSizes(r *Run, given Sizes) (s Sizes, blockSource, pagesSource string, err error) {
	s = given
	if s.BlockSize > 0 {
		blockSource = "flag"
	}
	if s.Pages > 0 {
		pagesSource = "flag"
	}
	if s.BlockSize == 0 || s.Pages == 0 {
		engines := map[engineSeries]int64{}
		block := 0
		err := r.readings(func(_ int64, target string, all []promtext.Reading) {
			for _, g := range all {
				switch g.Name {
				case promtext.PageTokens:
					block = int(g.Value)
				case promtext.KVPagesTotal:
					engines[engineSeries{g.Name, target, g.Engine}] = int64(g.Value)
				}
			}
		})
		if err != nil {
			return s, "", "", err
		}
		if s.BlockSize == 0 && block > 0 {
			s.BlockSize, blockSource = block, "server"
		}
		if total := sumValues(engines); s.Pages == 0 && total > 0 {
			s.Pages, pagesSource = total, "server"
		}
	}
	if r.Manifest != nil {
		profile, _ := r.Manifest.Options["profile"].(map[string]any)
		size, _ := profile["page_size"].(float64)
		pages, _ := profile["pages"].(float64)
		if s.BlockSize == 0 && size > 0 {
			s.BlockSize, blockSource = int(size), "manifest"
		}
		if s.Pages == 0 && pages > 0 {
			s.Pages, pagesSource = int64(pages)*max(int64(len(r.Manifest.Targets)), 1), "manifest"
		}
	}
	if s.BlockSize == 0 {
		s.BlockSize, blockSource = assumedBlockSize, "assumed"
	}
	return s, blockSource, pagesSource, nil
}

func sumValues[K comparable, V int64 | float64](m map[K]V) (n V) {
	for _, v := range m {
		n += v
	}
	return n
}

// modelled is how many exchanges the models hold. Of a run of more they take whole intervals of its time, one in so many.
const modelled = 1_000_000

// model fills in pages and mix, interference and anomalies, where the exchanges say when they were answered; and what caches would have hit,
// where they say what their prompts share.
func (s *Summary) model(r *Run, o Options) error {
	if o.NoModels {
		return nil
	}
	w := &s.Window
	timed := s.Metrics["ttft"].N > 0 || s.Metrics["e2el"].N > 0
	sizes, blockSource, pagesSource, err := findSizes(r, o.Sizes)
	if err != nil {
		return err
	}
	l, reuse, err := readModels(r, w.FromUnixNS, w.ToUnixNS, int((s.Requests.Sent+modelled-1)/modelled), timed)
	if err != nil {
		return err
	}
	p := l.Pages(sizes.BlockSize, sizes.Pages)
	p.BlockSizeSource, p.CapacitySource = blockSource, pagesSource
	reuse.fill(&p, r.Header, sizes)
	if !timed {
		if len(p.Curve) > 0 {
			s.Pages = &p
		}
		return nil
	}
	if m := l.Modelled(); m < 1 {
		s.Warnings = append(s.Warnings, fmt.Sprintf("pages and mix are modelled for %.3g %% of the time, intervals drawn over all of it: %s exchanges", 100*m, figure.Count(l.Requests())))
	}
	if p.CurveSample < 1 && len(p.Curve) > 0 {
		s.Warnings = append(s.Warnings, fmt.Sprintf("what caches would have hit is from a sample of %.3g %% of the prompt blocks", 100*p.CurveSample))
	}
	m := l.Mix()
	pagesBeside(&p, &w.Server)
	mixBeside(&m, w)
	s.Pages, s.Mix = &p, &m
	if s.Charts, err = chart(r, s, l); err != nil {
		return err
	}
	s.Interference, s.Anomalies = &s.Charts.Interference, s.Charts.Anomalies
	return nil
}

// readModels reads what the models need, in one pass; the load stays empty unless the exchanges are timed.
func readModels(r *Run, from, to int64, every int, timed bool) (*occupancy.Load, *reuse, error) {
	loads, uses := make([]*occupancy.Load, workers()), make([]*reuse, workers())
	err := r.each(occupancy.Columns, len(loads), func(w int) func(*formats.Exchange) {
		l, u := occupancy.New(r.Header, from, to, every), &reuse{}
		loads[w], uses[w] = l, u
		return func(x *formats.Exchange) {
			o := outcomeOf(x)
			if o == outcomeDropped {
				return
			}
			u.add(x)
			if timed {
				l.Add(x, o == outcomeCompleted, o == outcomeFailed)
			}
		}
	})
	if err != nil {
		return nil, nil, err
	}
	l, u := occupancy.New(r.Header, from, to, every), &reuse{}
	for w := range loads {
		if loads[w] != nil {
			l.Merge(loads[w])
			u.merge(uses[w])
		}
	}
	l.Settle()
	return l, u, nil
}

// pagesBeside puts the server's gauge beside the model.
func pagesBeside(p *Pages, s *Server) {
	if !p.Capacity.Valid || !s.KVUsageMean.Valid || s.Engines == 0 {
		return
	}
	p.Server = figure.Known(s.KVUsageSum.V * float64(p.Capacity.V) / float64(s.Engines))
	if middle := (p.InUse.Low.Mean.V + p.InUse.High.Mean.V) / 2; middle > 0 {
		p.Difference = figure.Known(p.Server.V/middle - 1)
	}
}

// mixBeside puts the rate of output over the whole window and the server's counters beside the model.
func mixBeside(m *Mix, w *Window) {
	if w.Seconds <= 0 {
		return
	}
	if w.OutputKnown > 0 {
		m.DecodeTokensPerS = figure.Known(float64(w.OutputTokens) / w.Seconds)
	}
	if s := &w.Server; s.ComputedTokens.Valid {
		m.ServerPrefillPerS = figure.Known(s.ComputedTokens.V / w.Seconds)
	}
	if s := &w.Server; s.OutputTokens.Valid {
		m.ServerDecodePerS = figure.Known(s.OutputTokens.V / w.Seconds)
	}
	m.ServerTokensPerRun = w.Server.IterationTokens
}
