package gpu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Holder is who holds a GPU: the content of a lock file.
type Holder struct {
	Holder  string    `json:"holder"` // user and command, for people
	Host    string    `json:"host"`
	PID     int       `json:"pid"`
	Since   time.Time `json:"since"`
	Unknown bool      `json:"-"` // the lock is held, by whom is not written
}

// String is who, where and since when.
func (h Holder) String() string {
	if h.Unknown {
		return "a process that has not said who it is"
	}
	return fmt.Sprintf("%s (process %d on %s) since %s", h.Holder, h.PID, h.Host, h.Since.Format("2006-01-02 15:04:05"))
}

// BusyError says which GPU is held and by whom.
type BusyError struct {
	UUID   string
	Holder Holder
}

func (e *BusyError) Error() string { return fmt.Sprintf("GPU %s is held by %s", e.UUID, e.Holder) }

// LockDir is where the locks of this machine are when nothing else is said: one directory for all its users, so that two runs on one
// host never share a GPU. A container has a directory of its own unless the host's is mounted into it.
func LockDir() string {
	if info, err := os.Stat("/run/lock"); err == nil && info.IsDir() {
		return "/run/lock/shadowtape"
	}
	return filepath.Join(os.TempDir(), "shadowtape-locks")
}

// Lease is an exclusive hold on some GPUs. The kernel releases it when the process ends, however it ends.
type Lease struct {
	UUIDs []string // in the order they were asked for
	files []*os.File
}

// LeaseOptions say where and for whom. Validate is not needed: every zero value has a meaning.
type LeaseOptions struct {
	Dir    string        // "": LockDir()
	Holder string        // who is named to others; "": the program's name
	Wait   bool          // wait for a held GPU instead of failing
	Every  time.Duration // between attempts while waiting; 0: 500 ms
	Told   func(error)   // told once per holder that is waited for; nil: nobody is
	// Whole names the GPU that an instance is part of: instances share power, heat and clocks, so a lease of one takes the whole. nil: as named.
	Whole func(uuid string) string
}

var lockName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// Acquire leases all of the GPUs or none. GPUs are locked in the order of their UUIDs, so that two runs that want the same two never
// wait for each other. A held GPU is a *BusyError, or waited for until ctx ends.
func Acquire(ctx context.Context, uuids []string, o LeaseOptions) (*Lease, error) {
	if len(uuids) == 0 {
		return nil, errors.New("lease GPUs: none is named")
	}
	l := &Lease{UUIDs: slices.Clone(uuids)}
	order := slices.Clone(uuids)
	slices.Sort(order)
	if len(slices.Compact(order)) != len(uuids) {
		return nil, errors.New("lease GPUs: one is named twice")
	}
	if o.Whole != nil {
		for i := range order {
			order[i] = o.Whole(order[i])
		}
		slices.Sort(order)
		order = slices.Compact(order)
	}
	var told Holder
	for _, id := range order {
		for {
			f, err := lock(id, o)
			if err == nil {
				l.files = append(l.files, f)
				break
			}
			var busy *BusyError
			if !errors.As(err, &busy) || !o.Wait {
				l.Release()
				return nil, fmt.Errorf("lease GPUs: %w", err)
			}
			if o.Told != nil && busy.Holder != told {
				told = busy.Holder
				o.Told(err)
			}
			every := o.Every
			if every == 0 {
				every = 500 * time.Millisecond
			}
			select {
			case <-ctx.Done():
				l.Release()
				return nil, fmt.Errorf("lease GPUs: %w (%w)", ctx.Err(), err)
			case <-time.After(every):
			}
		}
	}
	return l, nil
}

// AcquireAny leases want GPUs out of those given, the first that are free, in their order. With Wait it waits until so many are.
func AcquireAny(ctx context.Context, uuids []string, want int, o LeaseOptions) (*Lease, error) {
	if want < 1 || want > len(uuids) {
		return nil, fmt.Errorf("lease GPUs: %d of %d are wanted", want, len(uuids))
	}
	once := o
	once.Wait = false
	var told Holder
	for {
		all := &Lease{}
		var held error
		for _, id := range uuids {
			if len(all.UUIDs) == want {
				break
			}
			one, err := Acquire(ctx, []string{id}, once)
			var busy *BusyError
			switch {
			case err == nil:
				all.UUIDs, all.files = append(all.UUIDs, id), append(all.files, one.files...)
			case errors.As(err, &busy):
				held = err
			default:
				all.Release()
				return nil, err
			}
		}
		if len(all.UUIDs) == want {
			return all, nil
		}
		all.Release() // all or none: two that each hold half would wait for ever
		if !o.Wait {
			return nil, fmt.Errorf("%d of %d wanted GPUs are free: %w", len(all.UUIDs), want, held)
		}
		var busy *BusyError
		if errors.As(held, &busy) && o.Told != nil && busy.Holder != told {
			told = busy.Holder
			o.Told(held)
		}
		every := o.Every
		if every == 0 {
			every = 500 * time.Millisecond
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w (%w)", ctx.Err(), held)
		case <-time.After(every):
		}
	}
}

// Release ends the lease. A second call does nothing.
func (l *Lease) Release() error {
	var errs []error
	for _, f := range l.files {
		errs = append(errs, f.Truncate(0), f.Close()) // the file stays: removing it would let two lock different files of one name
	}
	l.files = nil
	return errors.Join(errs...)
}

// HolderOf says who holds a GPU, and whether anyone does. It looks by trying, for an instant: Acquire looks twice before it believes
// that a holder without a name is one.
func HolderOf(dir, uuid string) (Holder, bool, error) {
	path, err := lockPath(dir, uuid)
	if err != nil {
		return Holder{}, false, err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return Holder{}, false, nil
	}
	if err != nil {
		return Holder{}, false, fmt.Errorf("look at the lock of GPU %s: %w", uuid, err)
	}
	defer f.Close()
	held, err := tryLock(f)
	if err != nil {
		return Holder{}, false, fmt.Errorf("look at the lock of GPU %s: %w", uuid, err)
	}
	if !held {
		return Holder{}, false, nil
	}
	return readHolder(f), true, nil
}

func lockPath(dir, uuid string) (string, error) {
	if !lockName.MatchString(uuid) {
		return "", fmt.Errorf("GPU identifier %q cannot name a lock", uuid)
	}
	if dir == "" {
		dir = LockDir()
	}
	return filepath.Join(dir, strings.ToLower(uuid)+".lock"), nil
}

// lock takes one GPU's lock file without waiting for its holder.
func lock(uuid string, o LeaseOptions) (*os.File, error) {
	path, err := lockPath(o.Dir, uuid)
	if err != nil {
		return nil, err
	}
	if err := makeLockDir(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("lock directory %s: %w", filepath.Dir(path), err)
	}
	f, err := openLock(path)
	if err != nil {
		return nil, fmt.Errorf("lock GPU %s: %w", uuid, err)
	}
	for try := 0; ; try++ {
		held, err := tryLock(f)
		if err == nil && !held {
			break
		}
		h := readHolder(f)
		if err == nil && h.Unknown && try < 4 { // somebody looks, or is about to say who they are
			time.Sleep(5 * time.Millisecond)
			continue
		}
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("lock GPU %s: %w", uuid, err)
		}
		return nil, &BusyError{UUID: uuid, Holder: h}
	}
	h := Holder{Holder: o.Holder, PID: os.Getpid(), Since: time.Now().UTC()}
	if h.Holder == "" {
		h.Holder = filepath.Base(os.Args[0])
	}
	h.Host, _ = os.Hostname()
	b, err := json.Marshal(h)
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt(append(b, '\n'), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock GPU %s: %w", uuid, err)
	}
	return f, nil
}

// readHolder reads who holds the lock. Its writer may be about to write: then it is unknown.
func readHolder(f *os.File) Holder {
	b := make([]byte, 4096)
	n, _ := f.ReadAt(b, 0)
	var h Holder
	if json.Unmarshal(b[:n], &h) != nil || h.PID == 0 {
		return Holder{Unknown: true}
	}
	return h
}
