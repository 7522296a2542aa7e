package cage

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
)

// BenchmarkChromium measures a headless Chromium in a cage and without one, in turn, and reports how many times as
// much the caged one takes. It wants five rounds or more, on a quiet machine:
//
//	go test ./server/cage -run '^$' -bench Chromium -benchtime 10x
//
// Chromium is reached by CDP's HTTP endpoints alone, and loads its pages through a proxy, as in the image.
func BenchmarkChromium(b *testing.B) {
	needWhole(b)
	need.Program(b, "chromium")
	site := newCountedSite(b)
	figures := map[string]*[2][]float64{} // without and with a cage
	for b.Loop() {
		for caged := range 2 {
			for name, value := range measureChromium(b, site, caged == 1) {
				if figures[name] == nil {
					figures[name] = new([2][]float64)
				}
				figures[name][caged] = append(figures[name][caged], value)
			}
		}
	}
	table := "                              median:  free    caged  ratio   least:  free    caged  ratio\n"
	for _, f := range []struct{ name, unit string }{
		{"start, ms", "x-start"}, {"page, ms", "x-page"}, {"page of new connections, ms", "x-page-new"},
		{"memory (PSS), MiB", "x-pss"}, {"connect, µs", "x-connect"},
	} {
		free, caged := figures[f.name][0], figures[f.name][1]
		median, least := findMedian(caged)/findMedian(free), slices.Min(caged)/slices.Min(free)
		table += fmt.Sprintf("%-30s %12.1f %8.1f %6.2f %14.1f %8.1f %6.2f\n", f.name,
			findMedian(free), findMedian(caged), median, slices.Min(free), slices.Min(caged), least)
		b.ReportMetric(median, f.unit)
	}
	b.Log(table)
}

// BenchmarkCalls measures what the filter adds to a system call, in nanoseconds of processor time; the least of all rounds:
//
//	go test ./server/cage -run '^$' -bench Calls -benchtime 10x
func BenchmarkCalls(b *testing.B) {
	needWhole(b)
	l := newLab(b)
	times := map[string][]float64{}
	for b.Loop() {
		for name, role := range map[string]string{"free": "inside", "caged": "supervisor"} {
			out, err := l.command(b, role, "calls").Output()
			var got map[string]string
			var plain, read float64
			if err != nil || json.Unmarshal(out, &got) != nil {
				b.Fatalf("%v: %s", err, out)
			}
			if _, err := fmt.Sscan(got["calls"], &plain, &read); err != nil {
				b.Fatal(err)
			}
			times[name+"-ns"] = append(times[name+"-ns"], plain)
			times[name+"-args-ns"] = append(times[name+"-args-ns"], read)
		}
	}
	for name, values := range times {
		b.ReportMetric(slices.Min(values), name)
	}
}

func findMedian(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// countedSite is a proxy that serves pages of a hundred parts itself; a page tells it when it has loaded.
type countedSite struct {
	*httptest.Server
	loaded chan string
}

const pageParts = 100

func newCountedSite(b *testing.B) *countedSite {
	s := &countedSite{loaded: make(chan string, 1)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		kind, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		if kind == "new" { // each part comes by a connection of its own
			w.Header().Set("Connection", "close")
		}
		switch {
		case path == "page":
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprintf(w, "<script>onload = () => fetch('/%s/loaded')</script>", kind)
			for i := range pageParts {
				fmt.Fprintf(w, "<script src='/%s/%d'></script>", kind, i)
			}
		case path == "loaded":
			s.loaded <- kind
		case path != "":
			w.Header().Set("Content-Type", "text/javascript")
			_, _ = w.Write(bytes.Repeat([]byte("//\n"), 1000))
		}
	}))
	b.Cleanup(s.Close)
	return s
}

// measureChromium starts a Chromium, loads pages in it, and ends it.
func measureChromium(b *testing.B, site *countedSite, caged bool) map[string]float64 {
	b.Helper()
	l := newLab(b)
	port := findFreePort(b)
	program := "/usr/lib/chromium/chromium"
	proxy := site.Listener.Addr().(*net.TCPAddr).Port
	rules, err := json.Marshal(Rules{
		Read:    []string{"/lib", "/lib64", "/usr/lib", "/usr/share", "/etc", "/proc", "/sys", "/var/cache/fontconfig"},
		Execute: []string{filepath.Dir(program), l.dir + "/cage.test", loader},
		Write:   []string{filepath.Join(l.dir, "write"), "/dev/shm"},
		Devices: []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"},
		Listen:  []uint16{uint16(port)},
		Proxy:   uint16(proxy),
	})
	if err != nil {
		b.Fatal(err)
	}
	argv := []string{program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-breakpad",
		"--proxy-server=127.0.0.1:" + strconv.Itoa(proxy), "--remote-debugging-port=" + strconv.Itoa(port),
		"--user-data-dir=" + filepath.Join(l.dir, "write", "profile"), "about:blank"}
	home := filepath.Join(l.dir, "write")
	env := append(l.env, "CAGE_RULES="+string(rules), "HOME="+home, "TMPDIR="+home)
	if caged {
		argv = append([]string{filepath.Join(l.dir, "cage.test")}, argv...)
		env = append(env, "CAGE_ROLE=supervisor", "CAGE_WHOLE=1")
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(b.Context(), argv[0], argv[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, &stderr, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 1000, Gid: 1000}
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	}()
	cdp := fmt.Sprintf("http://127.0.0.1:%d/json/", port)
	need.Eventually(b, func() bool { return askCDP(http.MethodGet, cdp+"version") == nil }, func() string {
		return "Chromium doesn't answer: " + stderr.String()
	})
	out := map[string]float64{"start, ms": float64(time.Since(began).Microseconds()) / 1000}
	for kind, name := range map[string]string{"kept": "page, ms", "new": "page of new connections, ms"} {
		var took []float64
		for range 5 {
			began := time.Now()
			if err := askCDP(http.MethodPut, fmt.Sprintf("%snew?http://site.test/%s/page", cdp, kind)); err != nil {
				b.Fatal(err)
			}
			select {
			case got := <-site.loaded:
				if got != kind {
					b.Fatalf("%s has loaded, not %s", got, kind)
				}
			case <-time.After(need.Patience):
				b.Fatalf("no page: %s", stderr.String())
			}
			took = append(took, float64(time.Since(began).Microseconds())/1000)
		}
		out[name] = findMedian(took)
	}
	out["memory (PSS), MiB"] = readPSS(b, cmd.Process.Pid)
	out["connect, µs"] = measureConnects(b, l, append(env, fmt.Sprintf("CAGE_PORT_PROXY=%d", proxy)), caged)
	return out
}

func findFreePort(b *testing.B) int {
	s, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	return s.Addr().(*net.TCPAddr).Port
}

func askCDP(method, url string) error {
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// readPSS returns the memory in MiB of a process group: all private pages, and its part of each shared one.
func readPSS(b *testing.B, group int) float64 {
	b.Helper()
	var sum float64
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is good
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if g, err := syscall.Getpgid(pid); err != nil || g != group {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, "smaps_rollup"))
		if err != nil {
			continue // it has ended
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) == 3 && f[0] == "Pss:" {
				kib, _ := strconv.ParseFloat(f[1], 64)
				sum += kib / 1024
			}
		}
	}
	return sum
}

// measureConnects returns how long one connection to the proxy takes, in microseconds.
func measureConnects(b *testing.B, l *lab, env []string, caged bool) float64 {
	b.Helper()
	role := "inside"
	if caged {
		role = "supervisor"
	}
	cmd := exec.CommandContext(b.Context(), filepath.Join(l.dir, "cage.test"))
	cmd.Env = append(env, "CAGE_ROLE="+role, `CAGE_TRY=["connects"]`)
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	}
	text, err := cmd.Output()
	if err != nil {
		b.Fatalf("%v: %s", err, text)
	}
	var got map[string]string
	if err := json.Unmarshal(text, &got); err != nil {
		b.Fatal(err)
	}
	us, err := strconv.ParseFloat(got["connects"], 64)
	if err != nil {
		b.Fatal(err)
	}
	return us
}
