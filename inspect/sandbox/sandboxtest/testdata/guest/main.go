// Guest is the one program of the images that tests run: it tells what it sees of its container, and misbehaves on
// demand.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slimctl/slimctl/internal/tether"
)

func main() {
	verbs := map[string]func([]string){
		"report": report, "serve": serve, "sleep": sleep, "deaf": deaf, "eat": eat, "fork": fork, "exit": exit,
		"cat": cat, "both": both, "mess": mess, "daemon": daemon, "flood": flood, "crowd": crowd,
		"log": log, "ask": ask, "garbage": garbage, "streams": streams, "put": put, "swap": swap, "tool": tool,
		"-c": func([]string) { flood(nil) }, // as supervisorctl
	}
	if strings.Join(os.Args[1:], " ") == "init --tether" { // as an image that slimctl built
		held := hold()
		words := strings.Fields(os.Getenv("GUEST"))
		go verbs[words[0]](words[1:])
		fmt.Fprintln(os.Stderr, "untied:", <-held)
		return
	}
	if len(os.Args) < 2 || verbs[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "guest: unknown verb", os.Args)
		os.Exit(64)
	}
	verbs[os.Args[1]](os.Args[2:])
}

// tie is where what is outside is asked for.
const tie = "/tmp/tie"

// hold holds the tether. What is printed goes to standard error.
func hold() <-chan error {
	in, out := os.Stdin, os.Stdout
	os.Stdout = os.Stderr
	ended := make(chan error, 1)
	if strings.HasPrefix(os.Getenv("GUEST"), "garbage") || strings.HasPrefix(os.Getenv("GUEST"), "streams") {
		os.Stdin, os.Stdout = in, out
		return ended
	}
	l, err := net.Listen("unix", tie)
	check(err)
	go func() { ended <- tether.Hold(context.Background(), in, out, "127.0.0.1:8080", l) }()
	return ended
}

// ask dials the first argument as any program would, and sends each other one outside: a request line without its
// version. It is told why it is refused, as the image's own proxy is.
func ask(args []string) {
	_, err := (&net.Dialer{Timeout: 10 * time.Second}).Dial("tcp", args[0])
	fmt.Println("dialled:", err)
	for _, a := range args[1:] {
		method, target, _ := strings.Cut(a, "|")
		c, err := net.Dial("unix", tie)
		check(err)
		fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: x\r\nProxy-Browser-Shell-Refusal: tell\r\nConnection: close\r\n\r\n", method, target)
		text := make([]byte, 1<<10)
		n, err := c.Read(text) // of a tunnel there is no more
		if text = text[:n]; method != "CONNECT" {
			var rest []byte
			rest, err = io.ReadAll(io.LimitReader(c, 1<<20))
			text = append(text, rest...)
		}
		fmt.Printf("asked %s: %q %v\n", a, text, err)
		c.Close()
	}
	fmt.Println("asked all")
}

// garbage is no tether.
func garbage(args []string) {
	if len(args) > 0 {
		_, _ = os.Stdout.WriteString(args[0])
		time.Sleep(time.Hour)
	}
	flood(nil)
}

// streams opens streams for ever, as fast as it can, and reads nothing.
func streams([]string) {
	var all bytes.Buffer
	for id := uint32(2); ; id += 2 {
		frame := [12]byte{1: 1, 3: 1}
		binary.BigEndian.PutUint32(frame[4:], id)
		all.Write(frame[:])
		if all.Len() > 60_000 {
			if _, err := os.Stdout.Write(all.Bytes()); err != nil {
				time.Sleep(time.Hour)
			}
			all.Reset()
		}
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

// report prints what the container gives it, as JSON. Each argument is a path that it tries to write below.
func report(paths []string) {
	host, _ := os.Hostname()
	cwd, _ := os.Getwd()
	status := map[string]string{}
	text, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(text)) {
		k, v, _ := strings.Cut(line, ":")
		status[k] = strings.TrimSpace(v)
	}
	var nets []string
	ifs, _ := net.Interfaces()
	for _, i := range ifs {
		nets = append(nets, i.Name+" "+i.Flags.String())
	}
	writable := map[string]string{}
	for _, p := range paths {
		err := os.WriteFile(p+"/probe", []byte("x"), 0o644)
		writable[p] = fmt.Sprint(err)
	}
	groups, _ := os.Getgroups()
	mounts, _ := os.ReadFile("/proc/self/mounts")
	var files, core syscall.Rlimit
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files)
	_ = syscall.Getrlimit(syscall.RLIMIT_CORE, &core)
	_, kcore := os.Open("/proc/kcore")
	masked, _ := os.ReadFile("/proc/kcore")
	sysrq := os.WriteFile("/proc/sysrq-trigger", []byte("x"), 0)
	_, _, keyctl := syscall.Syscall(syscall.SYS_ADD_KEY, 0, 0, 0)
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"pid": os.Getpid(), "uid": os.Getuid(), "gid": os.Getgid(), "groups": groups, "host": host, "cwd": cwd, "env": os.Environ(),
		"args": os.Args, "status": status, "nets": nets, "writable": writable, "mounts": string(mounts), "files": files.Max,
		"core": core.Max, "kcore": fmt.Sprint(kcore, len(masked)), "sysrq": fmt.Sprint(sysrq), "keyctl": keyctl.Error(),
	}))
}

// serve echoes what it is sent, and when that ends says how much it was: each ADDRESS is listened on.
func serve(addrs []string) {
	for _, addr := range addrs {
		l, err := net.Listen("tcp4", addr)
		check(err)
		go func() {
			for {
				c, err := l.Accept()
				check(err)
				go func() {
					defer c.Close()
					n, _ := io.Copy(c, c)
					fmt.Fprintf(c, "|%d from %s", n, c.RemoteAddr().(*net.TCPAddr).IP)
				}()
			}
		}()
	}
	fmt.Println("ready")
	time.Sleep(math.MaxInt64) // without cgo the runtime calls select {} a deadlock
}

func sleep([]string) { awaitSignal("ready") }

// awaitSignal prints a line when the guest can be signalled, not before, and ends at the signal.
func awaitSignal(line string) {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM, syscall.SIGUSR1)
	fmt.Println(line)
	s := <-term
	fmt.Println("got", s)
	if s == syscall.SIGUSR1 {
		os.Exit(9)
	}
	os.Exit(7)
}

// deaf takes no signal but SIGKILL.
func deaf([]string) {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	fmt.Println("ready")
	time.Sleep(time.Hour)
}

func eat(args []string) {
	n, _ := strconv.Atoi(args[0])
	var all [][]byte
	for range n {
		all = append(all, bytes.Repeat([]byte{1}, 1<<20))
	}
	awaitSignal(fmt.Sprint("ate ", len(all)))
}

func fork(args []string) {
	n, _ := strconv.Atoi(args[0])
	started := 0
	for range n {
		cmd := exec.Command("/guest", "deaf")
		if err := cmd.Start(); err != nil {
			fmt.Println("refused:", err)
			break
		}
		started++
	}
	fmt.Println("started", started)
	deaf(nil)
}

// log writes each FILE=TEXT below the directory of the image's audit log, with a link beside them, and then takes no
// signal.
func log(args []string) {
	const dir = "/var/log/browser-shell/audit"
	check(os.MkdirAll(dir, 0o700))
	for _, a := range args {
		name, text, _ := strings.Cut(a, "=")
		check(os.WriteFile(dir+"/"+name, []byte(text), 0o600))
	}
	check(os.Symlink("/etc/passwd", dir+"/link"))
	check(os.Symlink("/etc/passwd", dir+"/link.jsonl"))
	_ = os.Chown(dir, 1001, 1001) // as the image's own account has it; an ordinary user can't
	deaf(nil)
}

// put writes each FILE=TEXT, and removes each FILE.
func put(args []string) {
	for _, a := range args {
		file, text, write := strings.Cut(a, "=")
		check(os.RemoveAll(file))
		if write {
			check(os.MkdirAll(filepath.Dir(file), 0o755))
			check(os.WriteFile(file, []byte(text), 0o600))
		}
	}
}

// swap makes /output/x a file, a link and a FIFO by turns, for ever.
func swap([]string) {
	fmt.Println("ready")
	for n := 0; ; n++ {
		check(os.WriteFile("/output/new", bytes.Repeat([]byte("good"), n%3), 0o644))
		check(os.Rename("/output/new", "/output/x"))
		check(os.Symlink("/etc/passwd", "/output/new"))
		check(os.Rename("/output/new", "/output/x"))
		check(syscall.Mkfifo("/output/new", 0o644))
		check(os.Rename("/output/new", "/output/x"))
	}
}

// tool answers MCP as the tool of an image that slimctl built. Each call adds a line to the audit log and writes a picture. With
// an argument it takes no signal but SIGKILL.
func tool(args []string) {
	if len(args) > 0 {
		signal.Ignore(syscall.SIGTERM)
	}
	const dir = "/var/log/browser-shell/audit"
	check(os.MkdirAll(dir, 0o700))
	calls := 0
	check(http.ListenAndServe("127.0.0.1:8080", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req struct {
			ID     json.RawMessage
			Method string
		}
		if json.NewDecoder(r.Body).Decode(&req) != nil || req.ID == nil {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		result := `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"guest","version":"1"}}`
		switch req.Method {
		case "tools/list":
			result = `{"tools":[{"name":"browser-shell","inputSchema":{"type":"object"}}]}`
		case "tools/call":
			calls++
			log, err := os.OpenFile(dir+"/audit.jsonl", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
			check(err)
			fmt.Fprintf(log, "line %d\n", calls)
			log.Close()
			put([]string{fmt.Sprintf("/output/run/%d.png=picture %d", calls, calls)})
			result = fmt.Sprintf(`{"content":[],"structuredContent":{"stdout":"{\"path\":\"/output/run/%d.png\"}"}}`, calls)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, req.ID, result)
	})))
}

// crowd ends with status 1 when it can't have as many processes as it wants.
func crowd(args []string) {
	n, _ := strconv.Atoi(args[0])
	for range n {
		check(exec.Command("/guest", "deaf").Start())
	}
}

func exit(args []string) {
	n, _ := strconv.Atoi(args[0])
	os.Exit(n)
}

func cat(args []string) {
	text, err := os.ReadFile(args[0])
	check(err)
	_, _ = os.Stdout.Write(text)
}

func both([]string) {
	fmt.Println("to stdout")
	fmt.Fprintln(os.Stderr, "to stderr")
}

// mess leaves in /output what a hostile container would.
func mess([]string) {
	check(os.MkdirAll("/output/a/b", 0o755))
	check(os.WriteFile("/output/a/b/good", []byte("good"), 0o600))
	check(os.Symlink("/etc/shadow", "/output/shadow"))
	check(os.Symlink("/", "/output/root"))
	check(os.Symlink("../../..", "/output/a/up"))
	check(syscall.Mkfifo("/output/fifo", 0o644))
	check(os.WriteFile("/output/setuid", []byte("x"), 0o755))
	check(os.Chmod("/output/setuid", 0o755|os.ModeSetuid))
	f, err := os.Create("/output/huge")
	check(err)
	check(f.Truncate(1 << 40))
	deep := "/output/deep"
	for range 100 {
		deep += "/d"
	}
	check(os.MkdirAll(deep, 0o755))
	_, err = net.Listen("unix", "/output/socket")
	check(err)
}

// daemon leaves a program behind that holds its streams.
func daemon([]string) {
	cmd := exec.Command("/guest", "deaf")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	check(cmd.Start())
	fmt.Println("left", cmd.Process.Pid)
}

// flood prints so many bytes, and without a number goes on for ever: after four times the most that any reader keeps
// more slowly, because the tests beside it need the processor, too.
func flood(args []string) {
	left := -1
	if len(args) > 0 {
		left, _ = strconv.Atoi(args[0])
	}
	line := bytes.Repeat([]byte("flood "), 10_000)
	for printed := 0; left != 0; left = max(left-len(line), min(left, 0)) {
		if _, err := os.Stdout.Write(line); err != nil {
			time.Sleep(time.Second)
		}
		if printed += len(line); left < 0 && printed > 64<<20 {
			time.Sleep(10 * time.Millisecond)
		}
	}
}
