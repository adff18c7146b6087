package deploy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shadowtape/shadowtape/internal/deploy/kube"
)

// Kubernetes starts a candidate in a cluster: a manifest is applied, awaited, and deleted afterwards, or a Service that is there is used.
type Kubernetes struct {
	Manifest  string `yaml:"manifest"`  // file of the objects to apply; "": only the service, which must be there
	Service   string `yaml:"service"`   // whose address is measured
	Port      string `yaml:"port"`      // of the service, by number or name; "": its only one
	Namespace string `yaml:"namespace"` // "": the context's
	Context   string `yaml:"context"`   // of the kubeconfig; "": its current one
}

func (k Kubernetes) none() bool { return k == Kubernetes{} }

func (f *File) validateKubernetes() []error {
	k := f.Kubernetes
	var errs []error
	if k.Service == "" {
		errs = append(errs, errors.New("kubernetes.service is missing: which Service is measured?"))
	}
	for _, what := range append(f.imageOnly(), given(map[string]bool{"env": len(f.Env) > 0, "gpus": !f.GPUs.None(), "probes": len(f.Probes) > 0, "dir": f.Dir != "", "port": f.Port != 0})...) {
		errs = append(errs, fmt.Errorf("%s is said in the manifest, not beside kubernetes", what))
	}
	return errs
}

// cluster runs a candidate in a Kubernetes cluster.
type cluster struct {
	launch
	c        *kube.Client
	objects  []*kube.Object
	digest   string
	selector string // of the candidate's pods
	restarts int
	version  string

	stopping  chan struct{}
	stopOnce  sync.Once
	following sync.WaitGroup
}

// clusterPoll is the time between looks at a cluster's objects.
const clusterPoll = time.Second

func (c *cluster) begin(ctx context.Context) (string, error) {
	k := c.file.Kubernetes
	c.stopping = make(chan struct{})
	var manifest []byte
	var err error
	if k.Manifest != "" { // before the cluster is asked
		if manifest, err = os.ReadFile(c.file.path(k.Manifest)); err != nil {
			return "", hinted(fmt.Errorf("read manifest: %w", err), "a relative path starts at the deployment file's directory")
		}
	}
	c.c, err = kube.Connect(kube.Options{Config: c.opts.Kubeconfig, Context: k.Context, Namespace: k.Namespace, Environ: inherited(c.opts.Environ), Getenv: c.opts.Getenv})
	if err != nil {
		return "", hinted(err, "name the file with KUBECONFIG, and the context in the deployment file")
	}
	if c.version, err = c.c.Version(ctx); err != nil {
		return "", hinted(fmt.Errorf("ask the cluster for its version: %w", err), "can kubectl reach it with the same kubeconfig and context?")
	}
	if k.Manifest != "" {
		if err := c.apply(ctx, manifest); err != nil {
			return "", err
		}
	}
	url, selector, err := c.address(ctx)
	if err != nil {
		return "", err
	}
	if k.Manifest == "" {
		c.selector = selector
	}
	pods, err := c.c.Pods(ctx, c.selector)
	if err == nil && len(pods) == 0 { // an operator makes them of an object of its own, and does not pass the label on
		c.selector = selector
		pods, err = c.c.Pods(ctx, c.selector)
	}
	if err != nil {
		return "", err
	}
	if len(pods) == 0 {
		c.selector = "" // a service without pods of this cluster: nothing to watch
	}
	for _, p := range pods {
		c.restarts += p.Restarts
	}
	if k.Manifest != "" {
		c.follow(ctx, pods)
	}
	return url, nil
}

// apply makes the manifest's objects and waits until they are ready.
func (c *cluster) apply(ctx context.Context, b []byte) error {
	sum := sha256.Sum256(b)
	c.digest = hex.EncodeToString(sum[:])
	objects, err := kube.Read(b, c.c.Namespace, c.id)
	if err != nil {
		return err
	}
	c.selector = kube.Label + "=" + c.id
	for _, o := range objects {
		c.progress(Progress{Stage: "start", Detail: "apply " + o.String()})
		c.objects = append(c.objects, o) // also where the answer does not come
		if err := c.c.Apply(ctx, o); err != nil {
			return err
		}
	}
	began := time.Now()
	limit := c.file.Health.Timeout.Or(10 * time.Minute)
	for _, o := range objects {
		for {
			ready, otherwise, err := c.c.Ready(ctx, o)
			if err != nil {
				return err
			}
			if ready {
				break
			}
			detail := otherwise
			pods, err := c.c.Pods(ctx, c.selector)
			if err != nil {
				return err
			}
			for _, p := range pods {
				if p.Broken {
					c.lastLog(ctx, p)
					return fmt.Errorf("pod %s: %s", p.Name, p.Waiting)
				}
				if p.Waiting != "" {
					detail = "pod " + p.Name + ": " + p.Waiting
				}
			}
			c.progress(Progress{Stage: "health", Elapsed: time.Since(began), Detail: detail})
			if time.Since(began) > limit {
				return hinted(fmt.Errorf("not ready after %s: %s", limit, detail), "raise health.timeout, or look with kubectl describe")
			}
			if err := sleep(ctx, clusterPoll); err != nil {
				return err
			}
		}
	}
	return nil
}

// address waits for the service's address.
func (c *cluster) address(ctx context.Context) (string, string, error) {
	k := c.file.Kubernetes
	began := time.Now()
	for {
		url, selector, err := c.c.Address(ctx, k.Service, k.Port)
		if err == nil {
			var pairs []string
			for _, key := range sortedKeys(selector) {
				pairs = append(pairs, key+"="+selector[key])
			}
			return url, strings.Join(pairs, ","), nil
		}
		if !kube.Pending(err) || time.Since(began) > c.file.Health.Timeout.Or(10*time.Minute) {
			return "", "", hinted(err, "run shadowtape inside the cluster, or make the Service a NodePort or LoadBalancer; a port-forward would be measured too")
		}
		c.progress(Progress{Stage: "start", Elapsed: time.Since(began), Detail: err.Error()})
		if err := sleep(ctx, clusterPoll); err != nil {
			return "", "", err
		}
	}
}

// follow reads the pods' logs until the candidate is stopped.
func (c *cluster) follow(ctx context.Context, pods []kube.Pod) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	for _, p := range pods {
		for _, name := range p.Containers {
			c.following.Go(func() { c.c.Logs(ctx, p.Name, name, c.log) }) // its end says nothing: pods are watched
		}
	}
	go func() { // ends when the candidate is stopped
		<-c.stopping
		done := make(chan struct{})
		go func() { c.following.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(2 * time.Second):
		}
		cancel()
	}()
}

// lastLog reads what a broken pod said.
func (c *cluster) lastLog(ctx context.Context, p kube.Pod) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	for _, name := range p.Containers {
		c.c.Logs(ctx, p.Name, name, c.log)
	}
}

// wait looks at the pods until one breaks or starts again, or the candidate is stopped.
func (c *cluster) wait() exitStatus {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { <-c.stopping; cancel() }()
	failures := 0
	if c.selector == "" {
		<-c.stopping
		return exitStatus{0, "stopped"}
	}
	for {
		pods, err := c.c.Pods(ctx, c.selector)
		if ctx.Err() != nil {
			return exitStatus{0, "stopped"}
		}
		if err != nil { // the API may be away for a moment; the candidate need not be
			if failures++; failures > 30 {
				return exitStatus{-1, "the cluster does not answer: " + err.Error()}
			}
		} else {
			failures = 0
			restarts := 0
			for _, p := range pods {
				if p.Broken {
					return exitStatus{-1, "pod " + p.Name + ": " + p.Waiting}
				}
				restarts += p.Restarts
			}
			if restarts > c.restarts {
				return exitStatus{-1, fmt.Sprintf("its containers started again: %d times", restarts-c.restarts)}
			}
			if len(pods) == 0 {
				return exitStatus{-1, "its pods are gone"}
			}
		}
		if sleep(ctx, 2*clusterPoll) != nil {
			return exitStatus{0, "stopped"}
		}
	}
}

// stop deletes what was applied, the last first, and waits until its pods are gone.
func (c *cluster) stop(ctx context.Context, grace time.Duration) error {
	var errs []error
	c.stopOnce.Do(func() {
		if c.stopping == nil {
			return
		}
		for _, o := range slices.Backward(c.objects) {
			errs = append(errs, c.c.Delete(ctx, o))
		}
		if len(c.objects) > 0 && c.selector != "" && errors.Join(errs...) == nil {
			deadline := time.Now().Add(grace)
			for time.Now().Before(deadline) {
				pods, err := c.c.Pods(ctx, c.selector)
				if err != nil || len(pods) == 0 {
					break
				}
				if sleep(ctx, clusterPoll) != nil {
					break
				}
			}
		}
		close(c.stopping)
		c.following.Wait()
	})
	if err := errors.Join(errs...); err != nil {
		return hinted(err, "kubectl delete -l "+kube.Label+"="+c.id)
	}
	return nil
}

// owns is false: no process of this machine is the candidate's.
func (c *cluster) owns(int) bool { return false }

func (c *cluster) run(context.Context, []string, io.Writer) error {
	return errors.New("probes are not run in a cluster")
}

func (c *cluster) environment(ctx context.Context) map[string]any {
	k := c.file.Kubernetes
	env := map[string]any{"kind": "kubernetes", "cluster_version": c.version, "namespace": c.c.Namespace, "service": k.Service, "in_cluster": c.c.InCluster}
	if c.digest != "" {
		env["manifest_sha256"] = c.digest
		var names []string
		for _, o := range c.objects {
			names = append(names, o.String())
		}
		env["objects"] = names
	}
	if c.selector == "" {
		return env
	}
	pods, err := c.c.Pods(ctx, c.selector)
	if err != nil {
		return env
	}
	var images []string
	nodes := map[string]any{}
	for _, p := range pods {
		images = append(images, p.Images...)
		if p.Node != "" && nodes[p.Node] == nil {
			if n, err := c.c.Node(ctx, p.Node); err == nil {
				nodes[p.Node] = n
			} else {
				nodes[p.Node] = map[string]any{"name": p.Node}
			}
		}
	}
	slices.Sort(images)
	env["image_digests"], env["pods"], env["nodes"] = slices.Compact(images), len(pods), nodes
	return env
}

// sleep waits, or returns the context's error.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
