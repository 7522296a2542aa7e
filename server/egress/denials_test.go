package egress

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/policy"
)

// sum counts the refusals that decisions stand for.
func sum(all []Decision) (n int) {
	for _, d := range all {
		var more int
		if _, err := fmt.Sscanf(d.Method, "and %d more", &more); err != nil {
			more = 1
		}
		n += more
	}
	return n
}

// inside resolves every name to an address that is not public.
type inside struct{}

func (inside) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
}

// TestFloodOfDenials: a page that asks for what is refused as fast as it can fills no log with it, and each refusal is
// in the log's counts, whose chain holds.
func TestFloodOfDenials(t *testing.T) {
	const flood = 20_000
	for name, c := range map[string]struct {
		target func(i int) string
		kinds  int // that are recorded apart, and by their rule
	}{
		"one host":   {func(int) string { return "http://inside.test/" }, 1},
		"two ports":  {func(i int) string { return fmt.Sprintf("http://inside.test:%d/", 80+i%2) }, 2},
		"many ports": {func(i int) string { return fmt.Sprintf("http://10.0.0.1:%d/", 1+i) }, maxDenials + 1},
		"addresses":  {func(i int) string { return fmt.Sprintf("http://10.0.%d.%d/", i>>8, i&255) }, 1}, // not told by Decision.Host
		"many hosts": {func(i int) string { return fmt.Sprintf("http://h%d.inside.test/", i) }, maxDenials + 1},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "egress.jsonl")
			log, err := audit.Open(path, 8<<20, 3)
			if err != nil {
				t.Fatal(err)
			}
			defer log.Close()
			p := New(policy.Default(), policy.Network{Resolver: inside{}}, nil, func(d Decision) error {
				return log.Write(audit.Record{Event: audit.NetworkBlocked, Host: d.Host, Port: d.Port, Rule: d.Rule, Note: d.Method})
			})
			start := time.Now()
			var running sync.WaitGroup
			var next atomic.Int64
			for range 8 {
				running.Go(func() {
					for i := next.Add(1) - 1; i < flood; i = next.Add(1) - 1 {
						w := httptest.NewRecorder()
						if p.ServeHTTP(w, httptest.NewRequest("GET", c.target(int(i)), nil)); w.Code != http.StatusForbidden {
							t.Errorf("%s: %d", c.target(int(i)), w.Code)
						}
					}
				})
			}
			running.Wait()
			if err := p.denied.close(); err != nil {
				t.Fatal(err)
			}
			most := 2*c.kinds + int(time.Since(start)/denialTime)*c.kinds // the first, one a second, the last
			_, head := log.Head()
			if r, err := audit.Verify(head, path); err != nil || !r.OK || !r.Complete {
				t.Errorf("the chain: %+v, %v", r, err)
			}
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			var all []Decision
			for lines := bufio.NewScanner(f); lines.Scan(); {
				var line struct{ Rule, Note string }
				if err := json.Unmarshal(lines.Bytes(), &line); err != nil || line.Rule != "url.private" {
					t.Fatalf("%s: %v", lines.Bytes(), err)
				}
				all = append(all, Decision{Method: line.Note})
			}
			if n := sum(all); n != flood || len(all) > most {
				t.Errorf("%d lines tell of %d refusals, want at most %d lines", len(all), n, most)
			}
		})
	}
}

// TestDenialsArePatient: counts come without further requests, and wait for a log that can't be written.
func TestDenialsArePatient(t *testing.T) {
	var mu sync.Mutex
	var all []Decision
	var broken atomic.Bool
	d := denials{every: 10 * time.Millisecond, most: 1, counts: map[denial]int{}, record: func(d Decision) error {
		if broken.Load() {
			return errors.New("broken")
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, d)
		return nil
	}}
	told := func() []Decision {
		mu.Lock()
		defer mu.Unlock()
		return all[:len(all):len(all)]
	}
	add := func(host, rule string) error { return d.add(Decision{Method: "GET", Host: host, Port: 80, Rule: rule}) }

	broken.Store(true)
	if add("a", "x") == nil {
		t.Error("a first refusal that isn't recorded is taken")
	}
	broken.Store(false)
	d.every = time.Hour // no tick now
	for _, host := range []string{"a", "a", "b", "c", "d"} {
		if err := add(host, "x"); err != nil {
			t.Fatal(err)
		}
	}
	if err := add("e", "y"); err != nil {
		t.Fatal(err)
	}
	first := told()
	if len(first) != 3 || first[0].Host != "a" || first[1].Host != "b" || first[2].Host != "e" || sum(first) != 3 {
		t.Errorf("at once: %+v", first)
	}
	broken.Store(true)
	d.every = 10 * time.Millisecond
	d.tick()
	d.tick()
	broken.Store(false)
	need.Eventually(t, func() bool { return sum(told()) == 6 }, func() string { return fmt.Sprint(told()) })
	for _, more := range told()[3:] {
		if more.Rule != "x" || more.Host == "a" && (more.Method != "and 1 more" || more.Port != 80) || more.Host == "" && (more.Method != "and 2 more" || more.Port != 0) {
			t.Errorf("later: %+v", more)
		}
	}
	need.Eventually(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.counts) == 0 && d.timer == nil
	}, func() string { return "what is over is not forgotten" })
	if err := add("a", "x"); err != nil || sum(told()) != 7 {
		t.Errorf("afterwards: %v, %+v", err, told())
	}
	if err := errors.Join(add("a", "x"), d.close()); err != nil || sum(told()) != 8 {
		t.Errorf("at the end: %v, %+v", err, told())
	}
	if err := add("a", "x"); err != nil || sum(told()) != 9 {
		t.Errorf("after the end: %v, %+v", err, told())
	}
}

// TestServeRecordsTheRest: who ends the proxy gets the counts before Serve returns.
func TestServeRecordsTheRest(t *testing.T) {
	l := newLabWith(t, nil, func(p *Proxy) { p.denied.every = time.Hour })
	l.names.turns["inside.test"] = []string{"10.0.0.1"}
	for range 5 {
		l.raw(t, get("http://inside.test/"))
	}
	if n := len(l.decisions()); n != 1 {
		t.Errorf("%d are told at once", n)
	}
	l.stop()
	if err := <-l.ended; err != nil {
		t.Fatal(err)
	}
	if all := l.decisions(); len(all) != 2 || all[1].Method != "and 4 more" || all[1].Host != "inside.test" || all[1].Rule != all[0].Rule {
		t.Errorf("%+v", all)
	}
}
