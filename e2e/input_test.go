package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/slimctl/slimctl/internal/need"
)

// inputs are what a page says that a person did to it.
type inputs struct {
	mu   sync.Mutex
	list []string
}

// record adds an input to the list.
func (i *inputs) record(what string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.list = append(i.list, what)
}

// take returns the inputs since the last call.
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
	keyReturn  = 0xff0d
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

// enter goes to an address, as a person does in a browser.
func (c *rfb) enter(t *testing.T, address string) {
	t.Helper()
	c.press(t, keyControl, 'l')
	c.write(t, address)
}

// write types a line.
func (c *rfb) write(t *testing.T, line string) {
	t.Helper()
	for _, r := range line {
		c.press(t, uint32(r))
	}
	c.press(t, keyReturn)
}

// testInput: with a ticket for input a person acts on the browser, until it is revoked; with any other he looks on. acted
// lists the keys and the clicks that the page gets.
func testInput(t *testing.T, b *box, acted *inputs) {
	good, status := orderTicket(t, b.w, `{"input": true}`, "X-AIO-API-Key", key)
	if status != 200 {
		t.Fatalf("a ticket with input: %d", status)
	}
	screen, err := openRFB(dialWith(t, b.w, "/websockify", good))
	if err != nil {
		t.Fatal(err)
	}
	act := &desk{rfb: screen, tools: b.devTools()}
	ended := make(chan error, 1)
	go func() { // answers pings
		_, err := io.Copy(io.Discard, screen.conn)
		ended <- err
	}()
	until := func(want string, do func()) (got []string) {
		t.Helper()
		await(t, need.Patience, want+" on the page", func() error {
			do()
			if got = append(got, acted.take()...); !slices.Contains(got, want) {
				return fmt.Errorf("it got %q", got)
			}
			return nil
		})
		return got
	}
	press := func(key rune) []string {
		return until("keydown-"+string(key), func() { act.press(t, uint32(key)) })
	}
	click := func(x int) []string {
		return until(fmt.Sprintf("mousedown-%d", x), func() { act.click(t, x, act.Height/2) })
	}
	const address = "http://" + siteIP + "/"
	act.enterUntil(t, address, func(tab target, _ string) bool { return tab.URL == address })
	click(act.Width / 2) // the page gets the keys from then on
	press('a')

	look := desktop(t, b.w, "/websockify")
	if !strings.HasSuffix(look.Name, " (view only)") || strings.Contains(act.Name, "view only") {
		t.Errorf("the desktops are called %q and %q", look.Name, act.Name)
	}
	for i := range 5 {
		look.click(t, look.Width/4, look.Height*(i+1)/6)
		look.press(t, 'x')
		look.enter(t, "http://"+siteIP+"/x")
		look.must(t)
	}
	for _, got := range append(press('b'), click(act.Width/3)...) { // what was sent before has arrived then
		if got == "keydown-x" || got == fmt.Sprintf("mousedown-%d", look.Width/4) {
			t.Errorf("a ticket that may only look did %s", got)
		}
	}

	req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, "http://"+public+"/tickets?ticket="+good, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-AIO-API-Key", key)
	res, err := b.w.client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusNoContent {
		t.Errorf("a ticket is revoked: %s", res.Status)
	}
	select {
	case err := <-ended:
		if websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
			t.Errorf("after its ticket's end the desktop ends with %v", err)
		}
	case <-time.After(need.Patience):
		t.Error("the desktop goes on after its ticket's end")
	}
	await(t, need.Patience, "the log of what the person did", func() error { // the end is logged once the connection is closed
		log, err := os.ReadFile(b.root(t) + "/var/log/browser-shell/audit/audit.jsonl")
		for _, event := range []string{"DESKTOP_INPUT_GRANTED", "DESKTOP_INPUT_BEGAN", "DESKTOP_INPUT_ENDED"} {
			if n := strings.Count(string(log), `"event":"`+event+`","subject":"key:`); n != 1 {
				err = errors.Join(err, fmt.Errorf("%s is logged %d times", event, n))
			}
		}
		return err
	})
}
