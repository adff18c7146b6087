package job

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/shadowtape/shadowtape/formats"
	"github.com/shadowtape/shadowtape/internal/promtext"
	"github.com/shadowtape/shadowtape/replayer"
	"github.com/shadowtape/shadowtape/replayer/client"
	"github.com/shadowtape/shadowtape/replayer/probe"
	"github.com/shadowtape/shadowtape/replayer/prompt"
	"github.com/shadowtape/shadowtape/replayer/schedule"
)

// Options describe a whole replay: a trace, targets, and a run directory.
type Options struct {
	Trace  *formats.Trace // what is replayed …
	Source *Source        // … or this; one of the two
	Client client.Options
	Out    string // the run directory to make

	Model     string           // "": the first that the target lists
	Endpoint  formats.Endpoint // of rows that do not say theirs; "": completions where the targets take token ids, else chat
	Dialect   string           // "": detected
	Seed      int64
	Prompts   string // token-ids, text, or auto, which "" is: token ids where the targets take them
	Bodies    string // a file of literal bodies; "": none
	BySession bool   // all requests of a session go to one target
	Natural   bool   // output lengths are left to the model
	Greedy    bool   // temperature 0 instead of what was recorded

	Selection   schedule.Selection  // what of the trace, and at which speed; its Seed is Seed
	SpreadTicks bool                // spread arrivals within the ticks of the trace's clock, whose length is detected
	Fill        schedule.Fill       // how what the trace does not say is drawn; its Seed is Seed, its Rate the selection's
	MaxInFlight int                 // 0: 100,000
	KeepCache   bool                // do not empty the prefix cache first, nor after the warm-up
	NoAborts    bool                // let answers come to their end that the recorded client broke off
	Users       int                 // not 0: a closed loop of so many users, which takes the trace's requests without its times
	Ramp, Think time.Duration       // of Users
	Warmup      int64               // requests sent before the schedule starts, of the trace's lengths but with other tokens
	WarmupTime  time.Duration       // or as many as come in this time of the schedule
	Cooldown    time.Duration       // the end of the schedule that is sent but not measured
	Saturate    time.Duration       // after the schedule, a closed loop of ever more users until throughput stops growing, at most so long
	Scrape      time.Duration       // between scrapes of the targets' metrics; 0: 500 ms, negative: none
	Metrics     []promtext.Endpoint // more pages to watch: the engines behind a router, a GPU exporter
	Limits      replayer.Limits
	RowBytes    int64 // what rows may hold that wait for the disk; what comes then is lost, and the run invalid. 0: the replayer's default

	// Beside starts what is watched beside the replay (a candidate's GPUs, its container) once the run directory exists; the function it
	// returns ends it after the last answer, and may add to the manifest. nil: nothing.
	Beside func(ctx context.Context, w *formats.RunWriter) (end func(*formats.Manifest))
	// StartAt is when the measured schedule begins, by this machine's clock; the zero time: when it is ready. What was due before it is
	// ready is dropped. Several shards need it.
	StartAt time.Time
	// WarmRule is a warm-up that ends by what is seen; Warmup, WarmupTime and a preroll come instead of it. nil: none.
	WarmRule *WarmRule
	// Measured is called when the warm-up is over and the measured schedule is about to start; nil: nobody is.
	Measured func()

	filling *schedule.Filling // nil: nothing is drawn

	ToolVersion string
	Command     []string // as given, without secrets
	Label       string   // "": the run directory's base name
}

// Validate reports every setting that cannot work.
func (o Options) Validate() error {
	errs := []error{o.Client.Validate(), o.WarmRule.Validate()}
	if (o.Trace == nil) == (o.Source == nil) {
		errs = append(errs, errors.New("neither a trace nor another source is given, or both"))
	}
	if o.Out == "" {
		errs = append(errs, errors.New("no run directory is given"))
	}
	errs = append(errs, o.Selection.Validate())
	settings := map[string]int64{"users": int64(o.Users), "ramp": int64(o.Ramp), "think": int64(o.Think), "warm-up": o.Warmup, "warm-up time": int64(o.WarmupTime),
		"cooldown": int64(o.Cooldown), "saturation": int64(o.Saturate)}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		v := settings[name]
		if v < 0 {
			errs = append(errs, fmt.Errorf("%s is negative", name))
		}
	}
	if o.Users > 0 && (o.Selection.Duration == 0 && o.Selection.Loops < 0 && o.Selection.MaxRequests == 0) {
		errs = append(errs, errors.New("users without a duration or a number of requests would never end"))
	}
	if o.Selection.Shards > 1 {
		if o.StartAt.IsZero() {
			errs = append(errs, errors.New("several shards need one time to start at"))
		}
		if o.Users > 0 || o.Saturate > 0 || !o.WarmRule.none() {
			errs = append(errs, errors.New("a shard has no closed loop of users, no saturation and no warm-up that ends by what is seen: each needs all of the load"))
		}
	}
	if most := cmp.Or(o.MaxInFlight, replayer.MostInFlight); o.Users > most {
		errs = append(errs, fmt.Errorf("%d users would have more than %d requests in flight (--max-in-flight)", o.Users, most))
	}
	if o.Users > 0 && (o.Selection.ThinkTime || o.Cooldown > 0) {
		errs = append(errs, errors.New("a closed loop of users has neither the trace's sessions nor a cooldown"))
	}
	if o.Selection.Preroll > 0 && (o.Warmup > 0 || o.WarmupTime > 0) {
		errs = append(errs, errors.New("a preroll is the warm-up: its cache is kept"))
	}
	if o.MaxInFlight < 0 {
		errs = append(errs, fmt.Errorf("%d requests in flight at most", o.MaxInFlight))
	}
	if _, ok := prompt.DialectNamed(o.Dialect); o.Dialect != "" && !ok {
		errs = append(errs, fmt.Errorf("there is no dialect %q: %v", o.Dialect, prompt.DialectNames()))
	}
	switch o.Prompts {
	case "", "auto", "token-ids", "text":
	default:
		errs = append(errs, fmt.Errorf("prompts are token-ids, text or auto, not %q", o.Prompts))
	}
	switch o.Endpoint {
	case "", formats.EndpointChat, formats.EndpointCompletions:
	default:
		errs = append(errs, fmt.Errorf("rows cannot become %s", o.Endpoint))
	}
	return errors.Join(errs...)
}

// Plan is what a replay is about to do. Its figures leave the warm-up out.
type Plan struct {
	Requests int64         // that this replayer sends
	Schedule int64         // of the whole schedule, where this is one of several shards; else Requests
	Arrivals int64         // of the whole schedule, its preroll included
	Warmup   int64         // requests of the preroll
	Users    int           // of a closed loop; the requests are then those it takes from, and Duration its end
	Duration time.Duration // to the last arrival, warm-up included
	PeakRate float64       // the most arrivals in one second
	Speed    float64       // how many times as fast as recorded
	Quantum  time.Duration // the tick of the trace's clock, where arrivals share times; 0: none
	Sessions bool          // the trace has sessions
	// Overlapping is how many turns come, at their recorded times, before the answer before them has ended, if answers take as long as in
	// the recording. Sessions in think time make them wait.
	Overlapping  int64
	ThinkTime    bool // turns wait for the answer before them
	InputTokens  int64
	OutputTokens int64
	Endpoints    map[formats.Endpoint]int64 // as they will be asked
	Targets      []string
	Model        string
	Dialect      string
	TokenIDs     bool
	Forced       bool // output lengths are forced
	Text         prompt.Calibration
	Drawn        schedule.Drawn // what of the requests is drawn from a model
	Warnings     []string
}

// Job is a replay that has been prepared.
type Job struct {
	Plan    Plan
	o       Options
	client  *client.Client
	infos   []probe.Info
	prompts *prompt.Maker
	sha     string
	perByte float64

	prompter replayer.Prompter
	bodies   *prompt.Bodies

	tools, images bool // the schedule has requests with such
}

// Prepare reads the trace's times, asks the targets what they are, and calibrates the prompts. It starts nothing: an unreachable
// target, a trace without requests or a run directory that exists is an error here. The caller closes the job.
func Prepare(ctx context.Context, o Options) (*Job, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.Selection.Seed = o.Seed
	if there, err := formats.Exists(o.Out); err != nil {
		return nil, fmt.Errorf("create run %s: %w", o.Out, err)
	} else if there {
		return nil, fmt.Errorf("create run %s: %w", o.Out, os.ErrExist)
	}
	c, err := client.New(o.Client)
	if err != nil {
		return nil, err
	}
	if o.Trace != nil {
		o.Fill.Seed, o.Fill.Rate = o.Seed, o.Selection.Rate
		if o.filling, err = o.Fill.Lacking(o.Trace); err != nil {
			return nil, fmt.Errorf("look at what %s lacks: %w", o.name(), err)
		}
		if o.filling != nil && o.filling.Arrivals {
			o.Selection.Rate = 0 // they are drawn at that rate
		}
	}
	j := &Job{o: o, client: c}
	j.Plan.ThinkTime = o.Selection.ThinkTime
	if o.filling != nil {
		j.Plan.Warnings = append(j.Plan.Warnings, o.filling.Warnings...)
	}
	if err := j.prepare(ctx); err != nil {
		j.Close()
		return nil, err
	}
	return j, nil
}

// Close closes connections and files.
func (j *Job) Close() {
	j.client.Close()
	if j.bodies != nil {
		j.bodies.Close() // it was only read
	}
}

func (j *Job) prepare(ctx context.Context) error {
	infos, err := probe.Targets(ctx, j.client, j.o.Model)
	if err != nil {
		return err
	}
	j.infos = infos
	pl := &j.Plan
	for _, t := range j.client.Targets() {
		pl.Targets = append(pl.Targets, t.URL())
	}
	if pl.Model = j.o.Model; pl.Model == "" {
		if len(infos[0].Models) == 0 {
			return fmt.Errorf("choose a model: %s lists none (--model names it)", infos[0].URL)
		}
		pl.Model = infos[0].Models[0]
	}
	dialect := infos[0].Dialect
	if j.o.Dialect != "" {
		dialect, _ = prompt.DialectNamed(j.o.Dialect)
	}
	pl.Dialect = dialect.Name
	pl.TokenIDs = true
	for i := range j.infos {
		pl.TokenIDs = pl.TokenIDs && infos[i].TokenIDs
		if j.o.Dialect != "" {
			infos[i].Dialect = dialect
		} else if infos[i].Dialect.Name != dialect.Name {
			pl.Warnings = append(pl.Warnings, fmt.Sprintf("the targets are different servers: %s and %s", dialect.Name, infos[i].Dialect.Name))
		}
	}
	switch {
	case j.o.Prompts == "text":
		pl.TokenIDs = false
	case j.o.Prompts == "token-ids" && !pl.TokenIDs:
		return fmt.Errorf("send token-id prompts to %s: a completion of them was not counted as they are", infos[0].URL)
	}
	endpoint := j.o.Endpoint
	if endpoint == "" {
		if endpoint = formats.EndpointChat; pl.TokenIDs {
			endpoint = formats.EndpointCompletions
		}
	}
	if err := j.count(endpoint); err != nil {
		return err
	}
	if pl.Forced = dialect.Forces() && !j.o.Natural; !pl.Forced && !j.o.Natural {
		pl.Warnings = append(pl.Warnings, fmt.Sprintf("the server is %s: output lengths cannot be forced, max_tokens is all that is sent", dialect.Name))
	}
	po := prompt.Options{Seed: j.o.Seed, Model: pl.Model, Endpoint: endpoint, TokenIDs: pl.TokenIDs, Dialect: dialect, Natural: j.o.Natural, Greedy: j.o.Greedy, TokensPerByte: j.perByte}
	h := j.o.header()
	if h.PrefixBlockSize > 0 && (h.PrefixBlockUnit == "tokens" || h.PrefixBlockUnit == "bytes") {
		po.BlockUnit, po.BlockSize, po.BlockRule = h.PrefixBlockUnit, h.PrefixBlockSize, h.PrefixBlockRule
	}
	po.Cumulative = h.Prompts == "cumulative"
	if text := pl.Requests - pl.Endpoints[formats.EndpointCompletions] - pl.Endpoints[formats.EndpointEmbeddings]; text > 0 {
		if po.Text, err = probe.Calibrate(ctx, j.client, pl.Model, formats.EndpointChat); err != nil {
			return err
		}
		if j.tools {
			probe.CalibrateTools(ctx, j.client, pl.Model, &po.Text)
		}
		po.Images = j.images && probe.TakesImages(ctx, j.client, pl.Model)
		pl.Text = po.Text
	}
	if !pl.TokenIDs && pl.Endpoints[formats.EndpointCompletions] > 0 {
		if po.CompletionText, err = probe.Calibrate(ctx, j.client, pl.Model, formats.EndpointCompletions); err != nil {
			return err
		}
		if pl.Text.Method == "" {
			pl.Text = po.CompletionText
		}
	}
	if j.prompts, err = prompt.New(po); err != nil {
		return err
	}
	j.prompter = j.prompts
	if j.o.Bodies != "" {
		b, err := prompt.OpenBodies(j.o.Bodies)
		if err != nil {
			return err
		}
		b.Maker, b.Model = j.prompts, pl.Model
		j.bodies, j.prompter = b, b
		pl.Warnings = append(pl.Warnings, fmt.Sprintf("%d literal bodies are sent as they are", b.Len()))
	}
	j.sha, err = j.o.sha256()
	return err
}

// Run replays, and writes the run directory. live may be nil. A cancelled context ends it early: the run directory holds what was
// measured, the manifest says Interrupted, and the error is nil.
func (j *Job) Run(ctx context.Context, live *replayer.Live) (formats.Manifest, error) {
	if live == nil {
		live = &replayer.Live{}
	}
	var id [6]byte
	if _, err := rand.Read(id[:]); err != nil {
		return formats.Manifest{}, err
	}
	ids := "st-" + hex.EncodeToString(id[:])
	m := j.manifest(ids)
	m.PrefixReset = "skipped"
	if j.late() > 0 {
		j.o.KeepCache = true // the others have begun
	}
	j.measureClocks(ctx, &m)
	if !j.o.KeepCache {
		m.PrefixReset = probe.ResetPrefixCache(ctx, j.client, j.infos)
	}
	w, err := formats.CreateRun(j.o.Out, m)
	if err != nil {
		return m, err
	}
	w.SetHeader(j.o.header())
	node, _ := os.Hostname() // unknown is unknown
	end := func(*formats.Manifest) {}
	if j.o.Beside != nil {
		end = j.o.Beside(ctx, w)
	}

	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var wg sync.WaitGroup
	var ws promtext.WatchStats
	var watchErr, clientErr error
	if every := j.o.Scrape; every >= 0 {
		if every == 0 {
			every = 500 * time.Millisecond
		}
		wg.Go(func() { ws, watchErr = j.client.Watch(watching, every, j.o.Metrics, w.WriteServer) })
	}
	wg.Go(func() { clientErr = watchClient(watching, live, w.WriteClient) })
	stats, after, err := j.phases(ctx, &m, w, ids, node, live)
	stop()
	wg.Wait()
	j.finish(&m, stats, ws, after)
	if err := j.finishShard(&m, stats); err != nil {
		return m, errors.Join(err, w.Close(m))
	}
	j.after(context.WithoutCancel(ctx), m.Environment)
	if err = errors.Join(err, watchErr, clientErr); err != nil {
		m.Valid, m.Invalid = false, append([]string{err.Error()}, m.Invalid...)
	}
	end(&m)
	return m, errors.Join(err, w.Close(m))
}
