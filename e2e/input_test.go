package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slimctl/slimctl/inspect/sandbox"
)

// inputs are what a page says that a person did to it.
type inputs struct {
	mu   sync.Mutex
	list []string
}

func (i *inputs) add(what string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.list = append(i.list, what)
}

// take gives what was done since the last call.
func (i *inputs) take() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	list := i.list
	i.list = nil
	return list
}

// Keys by their X11 keysyms.
const (
	keyControl = 0xffe3
	keyShift   = 0xffe1
	keyReturn  = 0xff0d
	keyF12     = 0xffc9
)

// press presses keys together, and lets go of them.
func (c *rfb) press(t *testing.T, keys ...uint32) {
	t.Helper()
	var b []byte
	for _, k := range keys {
		b = append(b, 4, 1, 0, 0, byte(k>>24), byte(k>>16), byte(k>>8), byte(k))
	}
	for _, k := range slices.Backward(keys) {
		b = append(b, 4, 0, 0, 0, byte(k>>24), byte(k>>16), byte(k>>8), byte(k))
	}
	if _, err := c.conn.Write(b); err != nil {
		t.Fatal(err)
	}
}

func (c *rfb) click(t *testing.T, x, y int) {
	t.Helper()
	var b []byte
	for _, button := range []byte{0, 1, 0} {
		b = append(b, 5, button, byte(x>>8), byte(x), byte(y>>8), byte(y))
	}
	if _, err := c.conn.Write(b); err != nil {
		t.Fatal(err)
	}
}

// testInput: a ticket that may look doesn't act on the agent's page, one with input does, until it is revoked; and neither
// opens DevTools or one of the browser's own pages. The page that acted hears from is open.
func testInput(t *testing.T, b *box, acted *inputs) {
	acted.take() // the agent's own
	look := desktop(t, b.w, "/websockify")
	if !strings.HasSuffix(look.Name, " (view only)") {
		t.Errorf("the desktop of a ticket is called %q", look.Name)
	}
	for i := range 5 {
		look.click(t, look.Width/2, look.Height*(i+1)/6)
		look.press(t, 'a')
		look.must(t)
	}
	good, status := orderTicket(t, b.w, `{"input": true}`, "X-AIO-API-Key", key)
	if status != 200 {
		t.Fatalf("a ticket with input: %d", status)
	}
	act, err := openRFB(dialWith(t, b.w, "/websockify", good))
	if err != nil {
		t.Fatal(err)
	}
	if got := acted.take(); len(got) > 0 {
		t.Errorf("a ticket that may only look did %v", got)
	}
	seen := map[string]bool{}
	i := 0
	await(t, time.Minute, "input on the page", func() error { // which is not on all of the screen
		act.click(t, act.Width/2, act.Height*(i%5+1)/6)
		act.press(t, 'a')
		i++
		for _, what := range acted.take() {
			seen[what] = true
		}
		if !seen["mousedown"] || !seen["keydown"] {
			return fmt.Errorf("the page saw %v", seen)
		}
		return nil
	})

	act.press(t, keyF12)
	act.press(t, keyControl, keyShift, 'i')
	act.press(t, keyControl, keyShift, 'j')
	act.press(t, keyControl, 'u')
	for _, address := range []string{"chrome://settings", "chrome://version", "devtools://devtools/bundled/inspector.html", "view-source:http://" + siteIP + "/"} {
		act.press(t, keyControl, 't')
		for _, r := range address {
			act.press(t, uint32(r))
		}
		act.press(t, keyReturn)
	}
	// When the browser is there, it has done the rest: it gets keys in their order.
	act.press(t, keyControl, 't')
	for _, r := range "http://" + siteIP + "/last" {
		act.press(t, uint32(r))
	}
	act.press(t, keyReturn)
	list := func() (urls []string) {
		r, err := b.Exec(t.Context(), []string{"/usr/bin/curl", "-s", "http://127.0.0.1:9222/json/list"}, sandbox.ExecOptions{User: "1000:1000"})
		if err != nil {
			t.Fatal(err)
		}
		var targets []struct{ URL, Title string }
		if err := json.Unmarshal(r.Stdout, &targets); err != nil {
			t.Fatalf("%s%s: %v", r.Stdout, r.Stderr, err)
		}
		for _, target := range targets {
			urls = append(urls, target.URL+" "+target.Title)
		}
		return urls
	}
	await(t, time.Minute, "the last page that was typed", func() error {
		if urls := list(); !slices.ContainsFunc(urls, func(s string) bool { return strings.Contains(s, "/last") }) {
			return fmt.Errorf("%q", urls)
		}
		return nil
	})
	t.Logf("open after all that a person typed: %q", list())
	b.keep["typed.json"] = []byte(strings.Join(list(), "\n"))
}
