package server

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/slimctl/slimctl/server/cdp"
)

const (
	// maxFailures is the number of tabs that may fail one after the other before Chromium is ended. Chromium says at
	// once that it can't start a process for a page, so this doesn't depend on the machine's speed.
	maxFailures = 2
	// slowTab is the time after which a tab that isn't ready counts as a failure, and maxSlow the number of those.
	slowTab = 15 * time.Second
	maxSlow = 3
	// probeEvery is the interval at which an idle Chromium has to open a page.
	probeEvery = time.Minute
	// endTime limits the wait for the end of a Chromium that was told to end.
	endTime = 10 * time.Second
)

// ChromiumReport is the name of the file in the state directory that says why Chromium can't open pages. There is none
// while it can.
const ChromiumReport = "chromium"

// chromium owns the life of the one Chromium: it connects, opens tabs, and ends a Chromium that can open none, so that
// supervisord starts another one. Its sessions have no use then: any page that leaves its site needs a new process, too.
type chromium struct {
	port   int
	proxy  string
	report string // path of ChromiumReport

	dialing *semaphore.Weighted
	conn    *cdp.Browser // nil or ended: dial again

	mu           sync.Mutex
	failed, slow int       // tabs since the last success
	opened       time.Time // when a tab was opened last
	reported     time.Time // when a failure was reported last
}

func newChromium(port int, proxy, stateDir string) *chromium {
	c := &chromium{port: port, proxy: proxy, report: filepath.Join(stateDir, ChromiumReport), dialing: semaphore.NewWeighted(1)}
	_ = os.Remove(c.report) // a predecessor's
	return c
}

// newTab opens a tab. If Chromium can't start a process for it, newTab tries again, at last in a new Chromium.
func (c *chromium) newTab(ctx context.Context) (*cdp.Browser, *cdp.Tab, error) {
	for {
		conn, err := c.connect(ctx)
		if err != nil {
			return nil, nil, err
		}
		began := time.Now()
		tab, err := conn.NewTab(ctx, c.proxy)
		if c.countTab(err, time.Since(began)) {
			within, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
			conn.End(within)
			cancel()
		}
		if !errors.Is(err, cdp.ErrNoProcess) || ctx.Err() != nil {
			return conn, tab, err
		}
	}
}

// countTab counts a tab that opened or didn't. It reports whether Chromium must end.
func (c *chromium) countTab(err error, took time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		if !c.opened.After(c.reported) {
			_ = os.Remove(c.report)
		}
		c.failed, c.slow, c.opened = 0, 0, time.Now()
		return false
	case errors.Is(err, cdp.ErrNoProcess):
		c.failed++
	case errors.Is(err, context.DeadlineExceeded) && took >= slowTab:
		c.slow++
	default:
		return false
	}
	c.reported = time.Now()
	_ = os.WriteFile(c.report, []byte(err.Error()), 0o600) // without it, health doesn't know
	if c.failed < maxFailures && c.slow < maxSlow {
		return false
	}
	c.failed, c.slow = 0, 0
	return true
}

// probe opens a page and closes it, until ctx ends, whenever no tab was opened for some time. enter admits it like a
// session; it reports false if a page would disturb one.
func (c *chromium) probe(ctx context.Context, enter func(context.Context) (leave func(), ok bool)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(probeEvery / 2):
		}
		c.mu.Lock()
		idle := time.Since(c.opened)
		c.mu.Unlock()
		if idle < probeEvery {
			continue
		}
		within, cancel := context.WithTimeout(ctx, 2*slowTab)
		if leave, ok := enter(within); ok {
			if _, tab, err := c.newTab(within); err == nil {
				_ = tab.Leave(within, tab.ID()) // navigates; an error shows again in the next probe
				_ = tab.Close(within)
			}
			leave()
		}
		cancel()
	}
}

// connect returns the connection to Chromium, and dials again if the last one has ended.
func (c *chromium) connect(ctx context.Context) (*cdp.Browser, error) {
	if err := c.dialing.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer c.dialing.Release(1)
	if c.conn != nil {
		select {
		case <-c.conn.Done():
		default:
			return c.conn, nil
		}
	}
	var err error
	c.conn, err = dialWhenUp(ctx, func(ctx context.Context) (*cdp.Browser, error) { return cdp.Dial(ctx, c.port) })
	return c.conn, err
}

// close ends the connection. No call may be running.
func (c *chromium) close() {
	if c.conn != nil {
		c.conn.Close()
	}
	_ = os.Remove(c.report)
}

// startTime limits the wait for a starting Chromium: after the boot of the image, or when supervisord restarts it.
const startTime = 15 * time.Second

// dialWhenUp dials until something listens, for half of the call's time and at most startTime. It returns every error
// except a refused connection immediately.
func dialWhenUp(ctx context.Context, dial func(context.Context) (*cdp.Browser, error)) (*cdp.Browser, error) {
	wait := startTime
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)/2)
	}
	over := time.After(wait)
	for {
		conn, err := dial(ctx)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return conn, err
		}
		select {
		case <-time.After(comingUp):
		case <-over:
			return nil, err
		case <-ctx.Done():
			return nil, err
		}
	}
}
