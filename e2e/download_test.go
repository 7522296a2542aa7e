package e2e

import (
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/slimctl/slimctl/internal/need"
)

// testDownloads: what a site sends to be saved is a file neither of an agent that clicks on its link nor of a person who goes there.
func testDownloads(t *testing.T, b *box) {
	text := strings.Repeat("echo downloaded\n", 111)
	var sent atomic.Int64
	site := &httptest.Server{Listener: b.w.listen(t, siteIP+":80"), Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/get.sh" {
			_, _ = io.WriteString(w, `<!doctype html><title>fine</title><a id="get" href="/get.sh">get</a>`)
			return
		}
		w.Header().Set("Content-Disposition", "attachment")
		_, _ = io.WriteString(w, text)
		sent.Add(1)
	})}}
	site.Start()
	defer site.Close()
	const address = "http://" + siteIP + "/"
	awaitSent := func(n int64) {
		t.Helper()
		await(t, need.Patience, "the file on its way", func() error {
			if got := sent.Load(); got < n {
				return fmt.Errorf("it was sent %d times, want %d", got, n)
			}
			return nil
		})
	}
	agent := newAgent(t, b.w)
	agent.must("downloads", "open", address)
	agent.call("downloads", "click", "#get")
	awaitSent(1)
	agent.must("downloads", "open", address) // and what became of the file is decided
	agent.must("downloads", "close")
	person := b.devTools().attach(t, func(tab target) bool { return tab.Type == "page" })
	for _, to := range []string{address + "get.sh", address} {
		if _, err := person.call(t.Context(), "Page.navigate", map[string]any{"url": to}); err != nil {
			t.Fatal(err)
		}
	}
	awaitSent(2)
	root := b.root(t)
	await(t, need.Patience, "the end of what Chromium began to save", func() error { // for a while it is in /tmp
		if found := b.find(t, func(p string, info fs.FileInfo) bool { // under any name
			if !info.Mode().IsRegular() || info.Size() != int64(len(text)) {
				return false
			}
			got, err := os.ReadFile(root + p)
			return err == nil && string(got) == text
		}); len(found) > 0 {
			return fmt.Errorf("%q were downloaded", found)
		}
		return nil
	})
}
