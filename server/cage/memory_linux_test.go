package cage

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
)

// TestFindVictim: whose memory in the main process it is shows who touched memory while it grew.
func TestFindVictim(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	page := func(pid int, touched, private int64) holder {
		return holder{identity{pid, uint64(pid)}, 2, touched * mib, private * mib, 300}
	}
	main := func(private int64) holder { return holder{identity{1, 1}, 0, 9000 * mib, private * mib, 300} }
	zygote := holder{identity{2, 2}, 1, 0, 14 * mib, 300}
	stranger := holder{identity{99, 99}, 50, 0, 900 * mib, 0}
	for _, tt := range []struct {
		name  string
		looks [][]holder
		pid   int
		holds int64 // MiB
	}{
		{"the largest", [][]holder{{main(60), zygote, stranger, page(10, 0, 40), page(11, 0, 300), page(12, 0, 50)}}, 11, 300},
		{"Blobs", [][]holder{
			{main(60), zygote, page(10, 500, 200), page(11, 40, 40)},
			{main(360), zygote, page(10, 510, 200), page(11, 340, 60)},
		}, 11, 60 + 290},
		{"Blobs, one by one, beside a page that animates now and then", [][]holder{
			{main(60), page(10, 0, 90), page(11, 0, 40)},
			{main(160), page(10, 0, 90), page(11, 100, 40)},
			{main(160), page(10, 900, 90), page(11, 100, 40)},
			{main(260), page(10, 900, 90), page(11, 200, 40)},
		}, 11, 240},
		{"Blobs that are gone", [][]holder{
			{main(60), page(10, 0, 150), page(11, 0, 40)},
			{main(360), page(10, 0, 150), page(11, 300, 40)},
			{main(60), page(10, 0, 150), page(11, 300, 40)},
		}, 10, 150},
		{"what was there at first is nobody's", [][]holder{{main(600), page(10, 700, 150), page(11, 0, 40)}}, 10, 150},
		{"another process with the number of one that held much", [][]holder{
			{main(60), page(10, 0, 130), page(11, 0, 40)},
			{main(360), page(10, 0, 130), page(11, 300, 40)},
			{main(360), page(10, 0, 130), {identity{11, 77}, 2, 0, 40 * mib, 300}},
		}, 10, 130},
		{"many frames: the newest", [][]holder{{main(60), page(10, 0, 100), page(11, 0, 20), page(12, 0, 30), page(13, 0, 20)}}, 13, 20},
		{"no page", [][]holder{{main(60), zygote, stranger}}, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := ledger{program: 1, score: 300}
			for _, look := range tt.looks {
				l.update(look)
			}
			if h, holds := l.findVictim(1024 * mib); h.pid != tt.pid || holds/mib != tt.holds {
				t.Errorf("got process %d, which holds %d MiB", h.pid, holds/mib)
			}
		})
	}
}

func TestMeasureCgroup(t *testing.T) {
	t.Parallel()
	if used, limit := measureCgroup(); used <= 0 || limit < used {
		t.Errorf("%d of %d", used, limit)
	}
}

// hogs are pages that take memory without end, each in another process's or kind of it. Review 3, M5: the first ended
// Chromium with the pages of all sessions, within 25 s.
var hogs = map[string]string{
	"Blobs":         `<script>k=[];setInterval(()=>k.push(new Blob([new Uint8Array(32<<20)])),100)</script>`,
	"small Blobs":   `<script>k=[];setInterval(()=>{for(let i=0;i<16;i++)k.push(new Blob([new Uint8Array(1<<20)]))},100)</script>`,
	"array buffers": `<script>k=[];setInterval(()=>k.push(new Uint8Array(32<<20).fill(1)),100)</script>`,
	"canvases": `<script>k=[];setInterval(()=>{let c=document.createElement('canvas');c.width=c.height=2048;
		let g=c.getContext('2d');g.fillRect(0,0,2048,2048);k.push(g.getImageData(0,0,2048,2048),c)},100)</script>`,
	"a worker": `<script>new Worker('/worker')</script>`,
}

// TestHogs: a page that takes memory without end loses its process, or the one of its frame. Its neighbour goes on, and so
// does Chromium.
func TestHogs(t *testing.T) {
	program := need.Chromium(t)
	for name, page := range hogs {
		t.Run(name, func(t *testing.T) { testHog(t, program, page) })
	}
}

func testHog(t *testing.T, program, page string) {
	var mu sync.Mutex
	pings, said := map[string]int{}, []string{}
	const ping = `<body><script>setInterval(()=>fetch('/ping?'+location.host),50)</script>`
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		switch r.URL.Path {
		case "/ping":
			mu.Lock()
			pings[r.URL.Host]++
			mu.Unlock()
		case "/worker":
			w.Header().Set("Content-Type", "text/javascript")
			_, _ = io.WriteString(w, `k=[];setInterval(()=>k.push(new Blob([new Uint8Array(8<<20)])),25)`)
		case "/neighbour":
			_, _ = io.WriteString(w, ping)
		case "/hog":
			_, _ = io.WriteString(w, ping+page)
		}
	}))
	t.Cleanup(proxy.Close)
	profile, err := os.MkdirTemp("", "cage-chromium-")
	if err != nil {
		t.Fatal(err)
	}
	// The cage gives a browser this score, by which its pages' processes are known.
	cmd := exec.Command("/bin/sh", "-c", `echo $(($(cat /proc/self/oom_score_adj) + 300)) >/proc/self/oom_score_adj; exec "$@"`, "sh",
		program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--incognito", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--proxy-server="+strings.TrimPrefix(proxy.URL, "http://"),
		"--proxy-bypass-list=<-loopback>", "--remote-debugging-port=0", "--user-data-dir="+profile, "about:blank")
	cmd.Env = append(os.Environ(), "TMPDIR="+profile)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		need.Eventually(t, func() bool { return os.RemoveAll(profile) == nil }, func() string { return profile + " can't be removed" })
	})
	var cdp string
	need.Eventually(t, func() bool {
		text, _ := os.ReadFile(filepath.Join(profile, "DevToolsActivePort"))
		port, _, ok := strings.Cut(string(text), "\n")
		cdp = "http://127.0.0.1:" + port + "/json/"
		return ok && askCDP(http.MethodGet, cdp+"version") == nil
	}, func() string { return "Chromium doesn't answer" })
	count := func(of string) int {
		mu.Lock()
		defer mu.Unlock()
		return pings[of]
	}
	open := func(page string) {
		if err := askCDP(http.MethodPut, cdp+"new?"+url.QueryEscape("http://"+page+".test/"+page)); err != nil {
			t.Fatal(err)
		}
		need.Eventually(t, func() bool { return count(page+".test") > 0 }, func() string { return page + " doesn't load" })
	}
	open("neighbour")
	measure := func() (sum int64) {
		for _, h := range readHolders() {
			if group, err := syscall.Getpgid(h.pid); err == nil && group == cmd.Process.Pid {
				sum += h.private
			}
		}
		return sum
	}
	limit := 2*measure() + 256<<20
	watched := make(chan bool)
	go func() {
		defer close(watched)
		r := Rules{Proxy: 1, Write: []string{profile}}
		r.watchMemory(cmd.Process.Pid, func() (int64, int64) { return measure(), limit }, func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, fmt.Sprintf(format, args...))
		})
	}()
	open("hog")
	most := int64(0)
	need.Eventually(t, func() bool {
		most = max(most, measure())
		mu.Lock()
		defer mu.Unlock()
		return len(said) > 0
	}, func() string { return fmt.Sprintf("no process was ended; %d of %d MiB", most>>20, limit>>20) })
	for until := time.Now().Add(3 * time.Second); time.Now().Before(until); time.Sleep(50 * time.Millisecond) { // more of it, and more ends
		most = max(most, measure())
	}
	seen := count("neighbour.test")
	need.Eventually(t, func() bool { return count("neighbour.test") > seen+3 }, func() string { return "the neighbour was ended, too: " + strings.Join(said, "; ") })
	if h, ok := readHolder(cmd.Process.Pid); !ok {
		t.Errorf("Chromium has ended: %v", h)
	}
	t.Logf("most: %d of %d MiB; %s", most>>20, limit>>20, strings.Join(slices.Compact(said), "; "))
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-watched:
	case <-time.After(need.Patience):
		t.Error("it is watched after its end")
	}
}
