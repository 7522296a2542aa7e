package policy

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/slimctl/slimctl/internal/need"
)

// urlCorpus reads testdata/urls.txt.
func urlCorpus(t testing.TB) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "urls.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var urls []string
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		var s string
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		urls = append(urls, s)
	}
	if len(urls) < 700 {
		t.Fatalf("%d addresses only", len(urls))
	}
	return urls
}

// mutants are odd children of the corpus, the same ones each time.
func mutants(corpus []string, n int) []string {
	parts := []string{
		".", "..", "/", "//", "\\", ":", "::", "@", "#", "?", "%", "%2e", "%2F", "%00", "[", "]", "0x", "0", "1", "8", "a", "xn--", "-", "_", "\t", "\n", " ",
		"。", "．", "：", "／", "＠", "８", "①", "ü", "ß", "\u00ad", "\u200d", "\ufe0f", "\u0301", "ﬁ", "K", "127.0.0.1", "localhost", "example.com", "http://", "https:", ":80", ":0", "&", "+", "~", "|", "^",
	}
	r := rand.New(rand.NewPCG(1, 2))
	var out []string
	for range n {
		s := []rune(corpus[r.IntN(len(corpus))])
		for range 1 + r.IntN(3) {
			i := r.IntN(len(s) + 1)
			switch r.IntN(4) {
			case 0: // put something in
				s = append(s[:i:i], append([]rune(parts[r.IntN(len(parts))]), s[i:]...)...)
			case 1: // take something out
				s = append(s[:i:i], s[min(len(s), i+1+r.IntN(3)):]...)
			case 2: // put something else
				s = append(s[:i:i], append([]rune(parts[r.IntN(len(parts))]), s[min(len(s), i+1):]...)...)
			case 3: // join with another's end
				other := []rune(corpus[r.IntN(len(corpus))])
				s = append(s[:i:i], other[r.IntN(len(other)+1):]...)
			}
		}
		out = append(out, string(s))
	}
	return out
}

// everyCharacter holds each character of the planes in use, once within a name
// and once before it.
func everyCharacter() []string {
	var out []string
	for c := rune(0x80); c < 0x40000; c++ {
		if utf8.ValidRune(c) {
			out = append(out, "http://a"+string(c)+"b.example/", "http://"+string(c)+".example/")
		}
	}
	return out
}

var plainHost = regexp.MustCompile(`^([a-z0-9_-]+(\.[a-z0-9_-]+)+|\[[0-9a-f:]+\])$`)

// TestURLCorpus: what is admitted has a plain host, and admitting the
// canonical form again changes nothing.
func TestURLCorpus(t *testing.T) {
	corpus := urlCorpus(t)
	p := Default()
	admitted := 0
	for _, s := range append(corpus, mutants(corpus, 20000)...) {
		u, r := p.CheckURL(s)
		if r != nil {
			if u != (URL{}) {
				t.Errorf("%q is refused and gives %+v", s, u)
			}
			continue
		}
		admitted++
		if !plainHost.MatchString(u.Host) {
			t.Errorf("%q gives the host %q", s, u.Host)
		}
		if again, r := p.CheckURL(u.Href); r != nil || again != u {
			t.Errorf("%q gives %+v, and that gives %+v %v", s, u, again, r)
		}
		if host, r := p.CheckHost(u.Host); r != nil || host != u.Host {
			t.Errorf("%q gives the host %q, and that gives %q %v", s, u.Host, host, r)
		}
		if r := p.CheckPage(u.Href); r != nil {
			t.Errorf("%q may be opened but not read: %v", s, r)
		}
	}
	if admitted < 1000 {
		t.Errorf("%d were admitted only", admitted)
	}
}

// seen is what Chromium reads from an address that was admitted.
type seen struct {
	Index     int
	In, Out   string // host, scheme, port and user; of the input and of our canonical form
	Respelled bool   // Chromium's canonical form is not ours
}

const seenPage = `<!doctype html><meta charset="utf-8"><body><script>
const read = s => { try { return new URL(s) } catch { return {} } };
const say = (u, h) => [h, u.protocol, u.port, u.username + u.password].join(' ');
const out = [];
%s.forEach(([input, href, host], i) => {
  const a = read(input), b = read(href);
  const In = say(a, (a.hostname ?? '?').replace(/\.$/, '')), Out = say(b, b.hostname ?? '?');
  if (In !== Out || b.hostname !== host || b.username + b.password || b.href !== href) out.push({Index: i, In, Out, Respelled: b.href !== href});
});
document.body.textContent = 'BEGIN ' + btoa(unescape(encodeURIComponent(JSON.stringify(out).toWellFormed()))) + ' END';
</script>`

// askChromium returns Chromium's reading of the addresses in which it sees
// anything else than we do. Each has the input, our canonical form and host.
func askChromium(t *testing.T, program string, urls [][3]string) []seen {
	t.Helper()
	list, err := json.Marshal(urls) // escapes <, so that no address ends the script
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "policy-chromium-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 20 { // its children may still be writing
			if os.RemoveAll(dir) == nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	page := filepath.Join(dir, "page.html")
	if err := os.WriteFile(page, fmt.Appendf(nil, seenPage, list), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--user-data-dir="+filepath.Join(dir, "profile"), "--dump-dom", "file://"+page)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	dom, err := cmd.Output()
	if err != nil {
		t.Fatalf("chromium: %v", err)
	}
	_, rest, _ := strings.Cut(string(dom), "BEGIN ")
	text, _, ok := strings.Cut(rest, " END")
	answer, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil {
		t.Fatalf("Chromium's page did not run: %.200s", dom)
	}
	var out []seen
	if err := json.Unmarshal(answer, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestChromiumAgrees: for each address that is admitted, Chromium sees the
// same host in the input and in the canonical form as we do, or another parser
// could be led astray.
func TestChromiumAgrees(t *testing.T) {
	program := need.Chromium(t)
	corpus := urlCorpus(t)
	p := Default()
	var ask [][3]string
	refused := 0
	for _, s := range slices.Concat(corpus, mutants(corpus, 20000), everyCharacter()) {
		u, r := p.CheckURL(s)
		if r != nil {
			refused++
			continue
		}
		if host, _ := cutAuthority(s); bareHost.MatchString(host) {
			s = "https://" + s
		}
		ask = append(ask, [3]string{s, u.Href, u.Host})
	}
	// The last one shows that differences are seen.
	ask = append(ask, [3]string{"http://127.0.0.1\\@example.com/", "http://example.com/", "example.com"})
	respelled, caught := 0, false
	for _, s := range askChromium(t, program, ask) {
		a := ask[s.Index]
		switch {
		case s.Index == len(ask)-1:
			caught = true
		case s.In != s.Out || !strings.HasPrefix(s.Out, a[2]+" "):
			t.Errorf("%q: Chromium sees %q, in our %q it sees %q", a[0], s.In, a[1], s.Out)
		case s.Respelled:
			respelled++ // "|" and "^" in a path
		}
	}
	if !caught {
		t.Error("a known difference was not seen")
	}
	t.Logf("%d addresses refused, %d admitted, %d of them with a tail that Chromium spells otherwise", refused, len(ask)-1, respelled)
}
