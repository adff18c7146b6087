package deploy

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/moby/moby/client"
)

// Leftover is a candidate whose starter is gone: a crash left it running.
type Leftover struct {
	Kind    string // container or process
	Name    string // of the container, or the process's command name
	ID      string // mark of the launch
	PID     int    // of the process; 0 for a container
	Started time.Time
	Remove  string // the command that removes it
}

// String is one line that names it.
func (l Leftover) String() string {
	if l.Kind == "process" {
		return fmt.Sprintf("process %d (%s) of an earlier run", l.PID, l.Name)
	}
	return fmt.Sprintf("container %s of an earlier run, from %s", l.Name, l.Started.Format("2006-01-02 15:04"))
}

// Leftovers finds what earlier starts left behind on this machine and, where engine answers, in it: containers and processes with our
// mark whose starter does not run any more. What belongs to a run that goes on, or to another machine, is not listed. An engine that
// does not answer is no error.
func Leftovers(ctx context.Context, engine string) ([]Leftover, error) {
	var found []Leftover
	for _, pid := range processes() {
		id := markOf(pid)
		if id == "" || pid == os.Getpid() {
			continue
		}
		o, ok := parseOwner(environOf(pid, ownerVariable))
		if !ok || !o.dead() {
			continue
		}
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		found = append(found, Leftover{Kind: "process", Name: strings.TrimSpace(string(name)), ID: id, PID: pid, Remove: fmt.Sprintf("kill %d", pid)})
	}
	cli, _, podman, err := connect(ctx, engine)
	if err != nil {
		return found, nil
	}
	defer cli.Close()
	list, err := cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", labelID)})
	if err != nil {
		return found, fmt.Errorf("look for leftover containers: %w", err)
	}
	tool := "docker"
	if podman {
		tool = "podman"
	}
	for _, c := range list.Items {
		o, ok := parseOwner(c.Labels[labelOwner])
		if !ok || !o.dead() {
			continue
		}
		name := c.ID[:min(12, len(c.ID))]
		if len(c.Names) > 0 {
			name = strings.TrimPrefix(c.Names[0], "/")
		}
		found = append(found, Leftover{Kind: "container", Name: name, ID: c.Labels[labelID], Started: time.Unix(c.Created, 0), Remove: tool + " rm -f " + name})
	}
	return found, nil
}
