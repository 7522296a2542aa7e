package acceptance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slimctl/slimctl/inspect/sandbox"
)

// settle is the time for unexpected programs and sockets to become as expected: one that started before the display is
// restarted once.
const settle = 20 * time.Second

// errElsewhere reports an engine on another machine, or in a virtual one: its processes are invisible here.
var errElsewhere = errors.New("the container's processes can't be seen from this machine: use an engine that runs on this machine, on Linux")

// inside checks programs, processes and sockets. when is the prefix of each message.
func (b *box) inside(ctx context.Context, when string) error {
	ctx, cancel := context.WithTimeout(ctx, b.Patience)
	defer cancel()
	var s state
	var err error
	patience := settle
	if len(b.findings) > 0 { // an earlier check has failed
		patience = settle / 10
	}
	for began := time.Now(); ; {
		s, err = b.lookOnce(ctx)
		if err == nil && len(s.wrong) == 0 || errors.Is(err, errElsewhere) || time.Since(began) > patience || ctx.Err() != nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(250 * time.Millisecond):
		}
	}
	if err != nil && b.ended(ctx, settle/4) {
		b.addFinding("run-start", "", "%sthe container has ended by itself: %s", when, quote(string(tail(b.Logs()))))
		return nil
	}
	if errors.Is(err, errElsewhere) {
		return err
	}
	if err != nil {
		b.addFinding("run-programs", "", "%sthe processes can't be listed: %s", when, quote(err.Error()))
	}
	for _, w := range s.wrong {
		b.addFinding(w.rule, w.subject, "%s%s", when, w.message)
	}
	return nil
}

// state holds the problems at one moment, a few more for each rule than are reported.
type state struct {
	wrong []wrong
	count map[string]int
}

type wrong struct{ rule, subject, message string }

func (s *state) add(rule, subject, format string, args ...any) {
	if s.count == nil {
		s.count = map[string]int{}
	}
	if s.count[rule]++; s.count[rule] > maxFindings+1 {
		return
	}
	s.wrong = append(s.wrong, wrong{rule, subject, fmt.Sprintf(format, args...)})
}

func (b *box) lookOnce(ctx context.Context) (s state, err error) {
	processes, err := b.Processes(ctx)
	if err != nil {
		return s, err
	}
	if !slices.ContainsFunc(processes, func(p sandbox.Process) bool { return p.Inside == 1 }) {
		return s, errElsewhere
	}
	sockets, err := b.Sockets(ctx)
	if err != nil {
		return s, err
	}
	programs, err := b.supervised(ctx)
	if err != nil {
		return s, err
	}
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		if p := programs[name]; !slices.Contains(b.Expect.Programs, name) {
			s.add("run-programs", name, "supervisord has the program %s (%s), which profile %s doesn't name", quote(name), quote(p.state), b.Expect.Profile)
		}
	}
	for _, name := range b.Expect.Programs {
		if p, ok := programs[name]; !ok {
			s.add("run-programs", name, "supervisord has no program %s", name)
		} else if p.state != "RUNNING" {
			s.add("run-programs", name, "program %s does not run: %s", name, quote(p.state))
		}
	}
	b.lookAtProcesses(&s, programs, processes)
	b.lookAtSockets(&s, sockets, processes)
	return s, nil
}

// supervised is a program's status from supervisord.
type supervised struct {
	state string
	pid   int // inside the container
}

// supervised asks supervisord through its control socket, as the socket's owner.
func (b *box) supervised(ctx context.Context) (map[string]supervised, error) {
	r, err := b.Exec(ctx, []string{"/usr/bin/supervisorctl", "-c", "/opt/gem/supervisord.conf", "status"}, sandbox.ExecOptions{})
	if err != nil {
		return nil, err
	}
	out := map[string]supervised{}
	for line := range strings.Lines(string(r.Stdout)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		p := supervised{state: f[1]}
		if len(f) > 3 && f[2] == "pid" {
			p.pid, _ = strconv.Atoi(strings.TrimSuffix(f[3], ",")) // 0 matches no process
		}
		out[f[0]] = p
	}
	if len(out) == 0 || r.Truncated {
		return nil, fmt.Errorf("supervisorctl lists no program, or too many: %.500s%.500s", r.Stdout, r.Stderr)
	}
	return out, nil
}

// lookAtProcesses finds processes that no program of the profile started, and those of root.
func (b *box) lookAtProcesses(s *state, programs map[string]supervised, processes []sandbox.Process) {
	byPID := map[int]sandbox.Process{} // by this machine's number
	for _, p := range processes {
		byPID[p.PID] = p
	}
	of := map[int]string{} // first process of each program, by the number inside
	for _, name := range b.Expect.Programs {
		if p, ok := programs[name]; ok && p.pid > 1 {
			of[p.pid] = name
		}
	}
	first := 0 // by this machine's number
	for _, p := range processes {
		if p.Inside == 1 {
			first = p.PID
		}
	}
	for _, p := range processes {
		supervises := p.Parent == first && slices.ContainsFunc(processes, func(c sandbox.Process) bool { return c.Parent == p.PID && of[c.Inside] != "" })
		if p.Inside == 1 || p.State == "Z" || supervises { // supervisord is the first process, or its child
			continue
		}
		name, at := "", p
		for range len(processes) { // limits the line of ancestors
			if name = of[at.Inside]; name != "" {
				break
			}
			at = byPID[at.Parent]
		}
		if p.UID == 0 && of[p.Inside] != "nginx" {
			s.add("run-root", p.Name, "process %s runs as root: %s", quote(p.Name), quote(strings.Join(p.Args, " ")))
		}
		if name == "" && !isCrashReporter(p) {
			s.add("run-processes", p.Name, "process %s comes from no program of profile %s: %s", quote(p.Name), b.Expect.Profile, quote(strings.Join(p.Args, " ")))
		}
	}
}

// isCrashReporter reports whether a process is Chromium's crash reporter, which leaves the browser's process tree on
// purpose. (Another process may use its name; sockets and foreign files still reveal it.)
func isCrashReporter(p sandbox.Process) bool {
	return p.UID != 0 && len(p.Args) > 0 && slices.Contains([]string{"chrome_crashpad_handler", "crashpad_handler"}, path.Base(p.Args[0]))
}

// lookAtSockets finds listeners that the profile doesn't name. It doesn't require all named ones: a profile names
// alternatives.
func (b *box) lookAtSockets(s *state, sockets []sandbox.Socket, processes []sandbox.Process) {
	var want []string
	for _, l := range b.Expect.Listeners {
		if !strings.HasPrefix(l, "unix:") {
			want = append(want, listener(l))
		}
	}
	seen := map[string]bool{}
	for _, l := range sockets {
		a := socketAddress(l)
		if seen[a] || slices.Contains(want, a) {
			seen[a] = true
			continue
		}
		seen[a] = true
		by := "an unknown process"
		if i := slices.IndexFunc(processes, func(p sandbox.Process) bool { return p.PID == l.PID }); i >= 0 {
			by = quote(strings.Join(processes[i].Args, " "))
		}
		s.add("run-listeners", a, "%s has a listener, %s; profile %s doesn't name it", a, by, b.Expect.Profile)
	}
}

// socketAddress formats a socket like expect.Listeners; UDP has its name as prefix.
func socketAddress(s sandbox.Socket) string {
	addr := s.Address.Addr().Unmap()
	host := addr.String()
	if addr == netip.IPv4Unspecified() {
		host = "*"
	}
	a := net.JoinHostPort(host, strconv.Itoa(int(s.Address.Port())))
	if strings.HasPrefix(s.Network, "udp") {
		a = "udp " + a
	}
	return a
}

// listener converts a profile's address to the form of socketAddress.
func listener(l string) string {
	a, err := netip.ParseAddrPort(l)
	if err != nil {
		return l
	}
	return socketAddress(sandbox.Socket{Address: a})
}

// root opens the file system of the running container, from outside, since an image may lack the programs for it.
func (b *box) root(ctx context.Context) (*os.Root, error) {
	processes, err := b.Processes(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(processes, func(p sandbox.Process) bool { return p.Inside == 1 })
	if i < 0 {
		return nil, errElsewhere
	}
	return os.OpenRoot(fmt.Sprintf("/proc/%d/root", processes[i].PID))
}

// obeyed looks for the files that commands in the variables would have created.
func (b *box) obeyed(ctx context.Context) {
	root, err := b.root(ctx)
	if err != nil {
		b.unchecked("what the variables' commands made: %s; root may look", quote(err.Error()))
		return
	}
	defer root.Close()
	made, err := fs.ReadDir(root.FS(), "tmp")
	if err != nil {
		b.unchecked("what the variables' commands made: %s", quote(err.Error()))
	}
	for _, d := range made {
		if _, ok := variables[d.Name()]; ok {
			b.addFinding("run-variables", d.Name(), "the command in %s was run: it made /tmp/%s", d.Name(), d.Name())
		}
	}
}
