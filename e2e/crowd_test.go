package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/need"
)

// TestCrowd: many clients at once that open pages, and after a refusal wait a second, take nothing from one that has a session,
// and are served. It is a small crowd for a moment; SLIMCTL_CROWD sets for how long 200 clients call:
//
//	SLIMCTL_CROWD=5m go test -v -timeout 30m -run TestCrowd ./e2e
//
// It prints how many pages they get for one that 8 clients get.
func TestCrowd(t *testing.T) {
	lasts, clients := 5*time.Second, 20
	if text := os.Getenv("SLIMCTL_CROWD"); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
		clients = 200
	}
	w := newWorld(t)
	b := boot(t, w, build(t, "l0-native", "standin-live:B"), nil)
	b.healthy(t)
	site := &httptest.Server{Listener: w.listen(t, siteIP+":80"), Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<!doctype html><title>fine</title><button>fine</button>")
	})}}
	site.Start()
	defer site.Close()
	const address = "http://" + siteIP + "/"
	few := b.crowd(t, 8, lasts, address)
	many := b.crowd(t, clients, lasts, address)
	t.Logf("in %s 8 clients got %d pages, %d clients %d: %.2f", lasts, few, clients, many, float64(many)/float64(max(few, 1)))
	if few == 0 || many == 0 {
		t.Error("a crowd gets no page")
	}
	b.healthy(t)
}

// crowd lets n clients open pages for a time, beside one that keeps its session, and returns how many pages they got.
func (b *box) crowd(t *testing.T, n int, lasts time.Duration, address string) int64 {
	t.Helper()
	holder := newAgentWithSession(t, b.w)
	holder.must("holder", "open", address)
	clients := make([]*agent, n)
	for i := range clients {
		clients[i] = newAgentWithSession(t, b.w)
	}
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	began := time.Now()
	var pages, refused, failed, held atomic.Int64
	var all sync.WaitGroup
	call := func(a *agent, session string, argv ...string) (ok bool, words string) {
		r, err := a.session.CallTool(t.Context(), &mcp.CallToolParams{Name: "browser-shell", Arguments: map[string]any{"session_id": session, "argv": argv}})
		if err != nil {
			return false, err.Error()
		}
		if r.IsError {
			return false, fmt.Sprint(r.StructuredContent)
		}
		return true, ""
	}
	for i, a := range clients {
		all.Go(func() {
			session := fmt.Sprint("c", i)
			for ctx.Err() == nil || pages.Load() == 0 && time.Since(began) < need.Patience {
				ok, words := call(a, session, "open", address)
				switch {
				case ok:
					pages.Add(1)
					_, _ = call(a, session, "close")
					continue
				case strings.Contains(words, "BUDGET_EXCEEDED"):
					refused.Add(1)
				default:
					if failed.Add(1) <= 3 {
						t.Logf("open: %.300s", words)
					}
				}
				time.Sleep(time.Second)
			}
		})
	}
	all.Go(func() {
		for ctx.Err() == nil {
			if ok, words := call(holder, "holder", "snapshot"); ok {
				held.Add(1)
			} else if !timeLimit.MatchString(words) && !strings.Contains(words, "BUDGET_EXCEEDED") || strings.Contains(words, "open a page") {
				t.Errorf("the holder beside %d clients: %s", n, words)
			}
			time.Sleep(200 * time.Millisecond)
		}
	})
	all.Wait()
	t.Logf("%d clients: %d pages, %d refused, %d failed; the holder: %d snapshots", n, pages.Load(), refused.Load(), failed.Load(), held.Load())
	holder.must("holder", "snapshot")
	holder.must("holder", "close")
	return pages.Load()
}
