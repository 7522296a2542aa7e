package cdp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/cdp"
	"github.com/slimctl/slimctl/server/cdp/cdptest"
)

// patience bounds what a busy machine may take long for.
const patience = need.Patience

func dialFake(t *testing.T) (*cdptest.Server, *cdp.Browser) {
	t.Helper()
	s := cdptest.New(t)
	b, err := cdp.Dial(within(t, patience), s.Port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return s, b
}

func fakeTab(t *testing.T, b *cdp.Browser) *cdp.Tab {
	t.Helper()
	tab, err := b.NewTab(within(t, patience), "127.0.0.1:8118")
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

func TestNewTab(t *testing.T) {
	s, b := dialFake(t)
	tab := fakeTab(t, b)
	if proxy, denied := s.Proxy(tab.ContextID()); proxy != "127.0.0.1:8118" || !denied {
		t.Errorf("proxy %q, downloads denied: %v", proxy, denied)
	}
	if !tab.Alive() || tab.ID() == "" {
		t.Error("not alive")
	}
	var file struct {
		TargetID, URL string
		Pinned        bool
	}
	if err := json.Unmarshal(tab.TargetFile(), &file); err != nil || file.TargetID != tab.ID() || file.URL != "about:blank" || !file.Pinned {
		t.Errorf("target file %s: %v", tab.TargetFile(), err)
	}
	if err := tab.Front(within(t, patience)); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := tab.Close(within(t, patience)); err != nil {
			t.Error(err)
		}
	}
	if tab.Alive() || s.Contexts() != 0 || len(s.Pages()) != 1 {
		t.Errorf("after close: alive %v, %d contexts, %v", tab.Alive(), s.Contexts(), s.Pages())
	}
	if _, err := b.NewTab(within(t, patience), ""); err == nil {
		t.Error("a tab without a proxy")
	}
}

// What cannot be had whole is not had: no context stays behind.
func TestNewTabFails(t *testing.T) {
	for _, method := range []string{"Target.createBrowserContext", "Browser.setDownloadBehavior", "Target.createTarget", "Target.getTargets"} {
		s, b := dialFake(t)
		s.Refuse(method, "no such thing")
		tab, err := b.NewTab(within(t, patience), "127.0.0.1:8118")
		if err == nil || tab != nil || !strings.Contains(err.Error(), "no such thing") || !strings.Contains(err.Error(), method) {
			t.Errorf("%s: %v %v", method, tab, err)
		}
		if s.Contexts() != 0 || len(s.Pages()) != 1 {
			t.Errorf("%s: %d contexts and %v stay", method, s.Contexts(), s.Pages())
		}
	}
}

func TestPages(t *testing.T) {
	s, b := dialFake(t)
	tab, neighbour := fakeTab(t, b), fakeTab(t, b)
	s.Navigate(tab.ID(), "http://a.test/")
	pop := s.Popup(tab.ID(), "http://b.test/")
	s.Popup("first", "http://c.test/")
	s.Navigate(neighbour.ID(), "http://d.test/")
	s.Navigate(tab.ID(), "http://b.test/")
	s.Navigate(tab.ID(), "http://a.test/")
	sync_(t, tab)
	sync_(t, tab)
	want := []cdp.Page{{ID: tab.ID(), URL: "http://a.test/"}, {ID: pop, URL: "http://b.test/"}}
	if got := tab.Pages(); !slices.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	if err := tab.Leave(within(t, patience), tab.ID()); err != nil {
		t.Error(err)
	}
	if err := tab.Leave(within(t, patience), pop); err != nil {
		t.Error(err)
	}
	if err := tab.Leave(within(t, patience), neighbour.ID()); err != nil || !neighbour.Alive() || neighbour.Pages()[0].URL != "http://d.test/" {
		t.Errorf("another tab's page was left: %v %v", err, neighbour.Pages())
	}
	if got := tab.Pages(); !slices.Equal(got, []cdp.Page{{ID: tab.ID(), URL: "about:blank"}}) {
		t.Errorf("after leaving: %v", got)
	}
}

func TestLeaveClosesWhatStays(t *testing.T) {
	s, b := dialFake(t)
	tab := fakeTab(t, b)
	s.Navigate(tab.ID(), "http://secret.test/")
	s.Refuse("Page.navigate", "renderer hangs")
	if err := tab.Leave(within(t, patience), tab.ID()); err == nil || !strings.Contains(err.Error(), "was closed") {
		t.Error(err)
	}
	if tab.Alive() || len(tab.Pages()) != 0 {
		t.Errorf("it is still there: %v", tab.Pages())
	}
}

func TestDocument(t *testing.T) {
	s, b := dialFake(t)
	tab := fakeTab(t, b)
	pop := s.Popup(tab.ID(), "http://b.test/")
	for _, tt := range []struct{ frame, loader, failed, wantID, want string }{
		{tab.ID(), "1", "", "1", ""},
		{"inner", "2", "https://a.test/", "1", ""},
		{pop, "3", "https://a.test/", "1", ""},
		{tab.ID(), "4", "https://a.test/", "4", "https://a.test/"},
		{"inner", "5", "", "4", "https://a.test/"},
		{tab.ID(), "6", "https://c.test/", "6", "https://c.test/"},
		{tab.ID(), "7", "", "7", ""},
		{tab.ID(), "8", "https://" + strings.Repeat("a", 1<<20), "8", "https://" + strings.Repeat("a", 64<<10-8)},
	} {
		s.SendPage(tab.ID(), fmt.Sprintf(`{"method":"Page.frameNavigated","params":{"frame":{"id":%q,"loaderId":%q,"url":"chrome-error://chromewebdata/","unreachableUrl":%q}}}`, tt.frame, tt.loader, tt.failed))
		sync_(t, tab)
		if id, failed := tab.Document(); id != tt.wantID || failed != tt.want {
			t.Errorf("%s went to %.40q: %q, %.40q", tt.frame, tt.failed, id, failed)
		}
	}
	if err := tab.LeaveError(within(t, patience)); err != nil {
		t.Error(err)
	}
	if id, failed := tab.Document(); failed != "" || id == "8" {
		t.Errorf("after leaving: %q, %.40q", id, failed)
	}
}

func TestTabGone(t *testing.T) {
	for name, end := range map[string]func(*cdptest.Server, *cdp.Tab){
		"closed":  func(s *cdptest.Server, tab *cdp.Tab) { s.ClosePage(tab.ID()) },
		"crashed": func(s *cdptest.Server, tab *cdp.Tab) { s.Crash(tab.ID()) },
		"crowded": func(s *cdptest.Server, tab *cdp.Tab) {
			for range 101 {
				s.Popup(tab.ID(), "http://a.test/")
			}
		},
		"frames of many sites": func(s *cdptest.Server, tab *cdp.Tab) {
			for range 51 {
				s.Frame(tab.ID())
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, b := dialFake(t)
			tab, neighbour := fakeTab(t, b), fakeTab(t, b)
			end(s, tab)
			if err := tab.Sync(within(t, patience)); err == nil || tab.Alive() {
				t.Errorf("alive (%v)", err)
			}
			// Nobody has to notice: its popups and frames take memory.
			eventually(t, func() bool { return s.Contexts() == 1 }, func() string { return "the context stays" })
			if err := neighbour.Sync(within(t, patience)); err != nil {
				t.Errorf("the neighbour: %v", err)
			}
			if err := tab.Close(within(t, patience)); err != nil || s.Contexts() != 1 {
				t.Errorf("close: %v, %d contexts", err, s.Contexts())
			}
		})
	}
}

// TestFrames: frames that are gone don't count, nor those of others.
func TestFrames(t *testing.T) {
	s, b := dialFake(t)
	tab, neighbour := fakeTab(t, b), fakeTab(t, b)
	for range 150 {
		s.CloseFrame(s.Frame(tab.ID()))
	}
	for range 40 {
		s.Frame(tab.ID())
		s.Frame(neighbour.ID())
	}
	sync_(t, tab)
	sync_(t, neighbour)
}

func TestCloseOthersKeepsOne(t *testing.T) {
	s, b := dialFake(t)
	tab, other := fakeTab(t, b), fakeTab(t, b)
	s.Popup(tab.ID(), "http://a.test/")
	if err := b.CloseOthers(within(t, patience), tab); err != nil {
		t.Fatal(err)
	}
	if got := s.Pages(); len(got) != 1 || got[0].ID != tab.ID() || other.Alive() || !tab.Alive() {
		t.Errorf("open: %v", got)
	}
	s.Popup(tab.ID(), "http://a.test/")
	sync_(t, tab)
	id := s.Popup("", "http://person.test/")
	s.ClosePage(id) // gone again: it may have been read
	if err := tab.Sync(within(t, patience)); err == nil || tab.Alive() {
		t.Error("not noticed that another page was there")
	}
	if err := tab.Close(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	if got := s.Pages(); len(got) != 1 || got[0].Context != "default" {
		t.Errorf("a Chromium with a window would end now: %v", got)
	}
	s.Refuse("Target.closeTarget", "never")
	tab = fakeTab(t, b)
	if err := b.CloseOthers(within(t, 100*time.Millisecond), tab); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a tab that stays: %v", err)
	}
}

func TestConnectionEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		end func(*cdptest.Server, *cdp.Browser)
		why string
	}{
		"killed":      {func(s *cdptest.Server, _ *cdp.Browser) { s.Stop() }, ""},
		"closed":      {func(_ *cdptest.Server, b *cdp.Browser) { b.Close() }, ""},
		"not JSON":    {func(s *cdptest.Server, _ *cdp.Browser) { s.Send(`{"method":`) }, ": a message is not JSON: unexpected end of JSON input"},
		"wrong types": {func(s *cdptest.Server, _ *cdp.Browser) { s.Send(`{"id":"x"}`) }, ": a message is not JSON: "},
		"too long": {
			func(s *cdptest.Server, _ *cdp.Browser) { s.Send(`"` + strings.Repeat("x", 17<<20) + `"`) },
			": a message has more than 16777216 bytes",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, b := dialFake(t)
			tab := fakeTab(t, b)
			s.Hang(true)
			waiting := make(chan error)
			go func() { waiting <- tab.Front(context.Background()) }()
			eventually(t, func() bool { return slices.Contains(s.Calls(), "Target.activateTarget") }, func() string { return "not called" })
			tc.end(s, b)
			select {
			case <-b.Done():
			case <-time.After(patience):
				t.Fatal("not noticed")
			}
			want := fmt.Sprintf("Target.activateTarget: the connection to Chromium on 127.0.0.1:%d has ended%s", s.Port, tc.why)
			if err := <-waiting; err == nil || !strings.HasPrefix(err.Error(), want) || tc.why == "" && err.Error() != want {
				t.Errorf("the waiting call: %v", err)
			}
			if tab.Alive() || tab.Sync(context.Background()) == nil || tab.Front(context.Background()) == nil || tab.Responds(context.Background()) {
				t.Error("the tab lives")
			}
			if err := tab.Close(within(t, patience)); err != nil {
				t.Errorf("close of what is closed: %v", err)
			}
			eventually(t, func() bool { return s.Contexts() == 0 && s.Clients() == 0 }, func() string { return "the context or a connection stays" })
		})
	}
}

// TestNewTabWithoutProcess: a tab whose process doesn't start is known at once, and nothing of it stays.
func TestNewTabWithoutProcess(t *testing.T) {
	s, b := dialFake(t)
	neighbour := fakeTab(t, b)
	s.FailToLaunch(1)
	if _, err := b.NewTab(within(t, patience), "127.0.0.1:8118"); !errors.Is(err, cdp.ErrNoProcess) {
		t.Errorf("got %v", err)
	}
	if s.Contexts() != 1 || !neighbour.Alive() {
		t.Errorf("%d contexts, neighbour alive: %v", s.Contexts(), neighbour.Alive())
	}
	fakeTab(t, b)
}

// TestSlowChromium: a Chromium that is late loses nobody's tab. What came too late, and what was to be closed, goes when it
// answers.
func TestSlowChromium(t *testing.T) {
	s, b := dialFake(t)
	tab, neighbour := fakeTab(t, b), fakeTab(t, b)
	s.Hang(true)
	soon := 10 * time.Millisecond
	if err := tab.Close(within(t, soon)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close: %v", err)
	}
	if _, err := b.NewTab(within(t, soon), "127.0.0.1:8118"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a new tab: %v", err)
	}
	if neighbour.Hangs(within(t, patience)) {
		t.Error("the neighbour is to blame for what all do")
	}
	s.Hang(false)
	eventually(t, func() bool { return s.Contexts() == 1 }, func() string { return fmt.Sprint(s.Contexts(), " contexts") })
	if !neighbour.Alive() || neighbour.Hangs(within(t, patience)) {
		t.Error("the neighbour is lost")
	}
	if err := tab.Close(within(t, patience)); err != nil {
		t.Errorf("close again: %v", err)
	}
	s.HangPage(neighbour.ID())
	if other := fakeTab(t, b); !neighbour.Hangs(within(t, patience)) || other.Hangs(within(t, patience)) {
		t.Error("a tab that alone doesn't answer does not hang, or another does")
	}
}

func TestDialogs(t *testing.T) {
	s, b := dialFake(t)
	tab := fakeTab(t, b)
	var want []bool
	for kind, accept := range map[string]bool{"alert": false, "confirm": false, "prompt": false, "": false, "beforeunload": true} {
		want = append(want, accept)
		s.Dialog(tab.ID(), kind)
		eventually(t, func() bool { return slices.Equal(s.Answers(), want) }, func() string { return fmt.Sprint(kind, s.Answers()) })
		if told := tab.Dialogs(); len(told) != 1 || told[0].Type != kind {
			t.Errorf("told of %q: %+v", kind, told)
		}
	}
	enabled := func() (n int) {
		for _, m := range s.Calls() {
			if m == "Page.enable" {
				n++
			}
		}
		return n
	}
	pop := s.Popup(tab.ID(), "http://b.test/")
	s.Popup("", "http://person.test/")
	eventually(t, func() bool { return enabled() == 2 }, func() string { return "the popup is not watched" })
	s.Dialog(pop, "confirm")
	eventually(t, func() bool { return len(s.Answers()) == len(want)+1 }, func() string { return "the popup's dialog stays" })
	sync_(t, tab)
	if enabled() != 2 {
		t.Error("a page of somebody else is watched")
	}
}

func TestDialogsWithoutEnd(t *testing.T) {
	s, b := dialFake(t)
	tab, neighbour := fakeTab(t, b), fakeTab(t, b)
	began := time.Now()
	for time.Since(began) < 300*time.Millisecond || len(s.Answers()) == 0 && time.Since(began) < patience {
		s.Dialog(tab.ID(), "alert")
	}
	n := len(s.Answers())
	if took := time.Since(began); n < 1 || n > 25*int(1+took/(300*time.Millisecond)) {
		t.Errorf("%d were dismissed in %s", n, took)
	}
	s.Dialog(neighbour.ID(), "alert")
	eventually(t, func() bool { return neighbour.Responds(within(t, patience)) }, func() string { return "the neighbour's stays" })
}

func TestResponds(t *testing.T) {
	s, b := dialFake(t)
	tab := fakeTab(t, b)
	if !tab.Responds(within(t, patience)) {
		t.Error("it does not respond")
	}
	s.Refuse("Page.handleJavaScriptDialog", "stays")
	s.Dialog(tab.ID(), "alert")
	if tab.Responds(within(t, patience)) {
		t.Error("it responds behind a dialog")
	}
}

// What one page says too much of is the end of its own tab only.
func TestLongDialog(t *testing.T) {
	s, b := dialFake(t)
	tab, neighbour := fakeTab(t, b), fakeTab(t, b)
	s.SendPage(tab.ID(), `{"method":"Page.frameNavigated","params":"`+strings.Repeat("x", 17<<20)+`"}`)
	eventually(t, func() bool { return !tab.Alive() }, func() string { return "it is not noticed" })
	sync_(t, neighbour)
	if err := tab.Close(within(t, patience)); err != nil || s.Contexts() != 1 {
		t.Errorf("close: %v, %d contexts", err, s.Contexts())
	}
}

// Odd events are passed over and neither kill nor mislead.
func TestOddMessages(t *testing.T) {
	s, b := dialFake(t)
	tab := fakeTab(t, b)
	for _, text := range []string{
		`{}`, `null`, `{"id":999,"result":{}}`, `{"id":-1,"error":{"message":"x"}}`, `{"method":"Target.targetCreated"}`,
		`{"method":"Target.targetCreated","params":[]}`, `{"method":"Target.targetDestroyed","params":{"targetId":7}}`,
		`{"method":"Target.targetCreated","params":{"targetInfo":{"targetId":"w","type":"worker","url":"http://w.test/","browserContextId":"` + tab.ContextID() + `"}}}`,
	} {
		s.Send(text)
	}
	sync_(t, tab)
	if got := urls(tab.Pages()); !slices.Equal(got, []string{"about:blank"}) {
		t.Errorf("pages: %q", got)
	}
	s.Navigate(tab.ID(), "http://a.test/"+strings.Repeat("x", 1<<20))
	sync_(t, tab)
	if got := len(tab.Pages()[0].URL); got != 64<<10 {
		t.Errorf("a URL of %d bytes is kept", got)
	}
}

// While a page moves to another process Chromium gives no URL for it.
func TestPageWithoutURL(t *testing.T) {
	s, b := dialFake(t)
	tab := fakeTab(t, b)
	s.Popup(tab.ID(), "")
	sync_(t, tab)
	if got := urls(tab.Pages()); !slices.Equal(got, []string{"about:blank", "about:blank"}) {
		t.Errorf("a popup that shows nothing yet: %q", got)
	}
	s.Navigate(tab.ID(), "http://a.test/")
	s.Navigate(tab.ID(), "")
	go func() {
		time.Sleep(50 * time.Millisecond)
		s.Navigate(tab.ID(), "http://secret.test/")
	}()
	sync_(t, tab)
	if got := tab.Pages()[0].URL; got != "http://secret.test/" {
		t.Errorf("while it moved it was taken to be at %q", got)
	}
	s.Navigate(tab.ID(), "")
	if err := tab.Sync(within(t, 100*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a page that is nowhere: %v", err)
	}
	s.Navigate(tab.ID(), "http://a.test/")
	sync_(t, tab)
}

func TestDeadline(t *testing.T) {
	s, b := dialFake(t)
	tab := fakeTab(t, b)
	s.Hang(true)
	if err := tab.Sync(within(t, 50*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	s.Hang(false)
	sync_(t, tab) // one caller's time is not the others'
}

func TestMany(t *testing.T) {
	s, b := dialFake(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			tab := fakeTab(t, b)
			for i := range 50 {
				url := fmt.Sprint("http://a.test/", i)
				s.Navigate(tab.ID(), url)
				sync_(t, tab)
				if got := urls(tab.Pages()); !slices.Equal(got, []string{url}) {
					t.Errorf("got %q, want %s", got, url)
				}
			}
			if err := tab.Close(within(t, patience)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if s.Contexts() != 0 {
		t.Errorf("%d contexts stay", s.Contexts())
	}
}

func TestDialRefuses(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("went elsewhere") }))
	defer elsewhere.Close()
	for name, answer := range map[string]http.HandlerFunc{
		"not JSON":  func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") },
		"not found": func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) },
		"no URL":    func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{}`) },
		"other path": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"webSocketDebuggerUrl":"ws://127.0.0.1/x"}`)
		},
		"redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) },
		"no end":   func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"a":"`, strings.Repeat("x", 1<<20)) },
		"no upgrade": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"webSocketDebuggerUrl":"ws://x/devtools/browser/1"}`)
		},
		"hangs a lot": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(answer)
			defer s.Close()
			port := s.Listener.Addr().(*net.TCPAddr).Port
			most := patience
			if name == "hangs a lot" {
				most = 300 * time.Millisecond
			}
			_, err := cdp.Dial(within(t, most), port)
			if want := fmt.Sprintf("Chromium does not answer on 127.0.0.1:%d", port); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v", err)
			}
		})
	}
	s := cdptest.New(t)
	s.Stop()
	if _, err := cdp.Dial(within(t, patience), s.Port); err == nil || !strings.Contains(err.Error(), "Chromium does not answer on") {
		t.Errorf("nobody listens: %v", err)
	}
}
