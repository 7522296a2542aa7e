// Guest is the one program of the images that tests run: it tells what it sees of its container, and misbehaves on demand.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	verbs := map[string]func([]string){
		"report": report, "serve": serve, "sleep": sleep, "deaf": deaf, "eat": eat, "fork": fork, "exit": exit,
		"cat": cat, "both": both, "mess": mess, "daemon": daemon, "flood": flood, "crowd": crowd,
	}
	if len(os.Args) < 2 || verbs[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "guest: unknown verb", os.Args)
		os.Exit(64)
	}
	verbs[os.Args[1]](os.Args[2:])
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
	select {}
}

func sleep([]string) {
	fmt.Println("ready")
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM, syscall.SIGUSR1)
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
	fmt.Println("ate", len(all))
	sleep(nil)
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

// flood prints so many bytes, and without a number goes on for ever.
func flood(args []string) {
	left := -1
	if len(args) > 0 {
		left, _ = strconv.Atoi(args[0])
	}
	line := bytes.Repeat([]byte("flood "), 10_000)
	for ; left != 0; left = max(left-len(line), min(left, 0)) {
		if _, err := os.Stdout.Write(line); err != nil {
			time.Sleep(time.Second)
		}
	}
}
