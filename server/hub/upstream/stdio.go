package upstream

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server/process"
)

// inherited lists the variables that programs inherit from the hub's environment.
var inherited = []string{"PATH", "HOME", "LANG"}

// Names of the marks in a program's environment.
const (
	hubVar    = "BROWSER_SHELL_HUB"
	serverVar = "BROWSER_SHELL_SERVER"
)

// Sweep ends the processes that a killed hub of the same name (Options.Hub) has left, and returns the number of those
// that remain.
func Sweep(hub string) int {
	if hub == "" {
		return 0
	}
	return process.End(hubVar + "=" + hub)
}

func buildEnv(c Config, hub string) []string {
	vars := map[string]string{}
	for _, name := range inherited {
		if v, ok := os.LookupEnv(name); ok {
			vars[name] = v
		}
	}
	if len(c.Path) > 0 {
		vars["PATH"] = strings.Join(c.Path, ":")
	}
	maps.Copy(vars, c.Env)
	if hub != "" {
		vars[hubVar] = hub
	}
	delete(vars, serverVar) // Program.Mark has it
	env := make([]string, 0, len(vars))
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		env = append(env, name+"="+vars[name])
	}
	return env
}

// stdioLink is a program and the connection over its pipes.
type stdioLink struct {
	child  *process.Child
	conn   *conn
	times  *times
	copied chan struct{} // closed when its stderr has ended
}

func startProgram(s *Server, f *fuse) (*stdioLink, error) {
	command, err := findProgram(s.config)
	if err != nil {
		return nil, err
	}
	child, err := process.Start(process.Program{
		Path: command, Argv: s.config.Args, Dir: s.config.Cwd,
		Env: buildEnv(s.config, s.options.Hub), Mark: s.mark,
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.config.Command, err)
	}
	l := &stdioLink{child: child, times: s.times, copied: make(chan struct{})}
	l.conn = newConn(child.Stdout, child.Stdin, &s.log, s.times, f)
	go func() {
		defer close(l.copied)
		_, _ = io.CopyBuffer(struct{ io.Writer }{&s.log}, struct{ io.Reader }{child.Stderr}, make([]byte, 4<<10))
	}()
	go l.drain()
	return l, nil
}

// findProgram returns the path of a server's program. It looks up a name only in the directories that the configuration
// lists.
func findProgram(c Config) (string, error) {
	if filepath.IsAbs(c.Command) {
		return c.Command, nil
	}
	for _, dir := range c.Path {
		p := filepath.Join(dir, c.Command)
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return p, nil
		}
	}
	return "", fmt.Errorf("command %q is in no directory of path %q; install it there, or add its directory to path", c.Command, c.Path)
}

// drain ends the connection when the program has ended and its last output was read. Other processes that hold its
// pipes can't delay this for long.
func (l *stdioLink) drain() {
	<-l.child.Done()
	late := time.NewTimer(l.times.drain)
	defer late.Stop()
	for _, ended := range []<-chan struct{}{l.conn.ended, l.copied} {
		select {
		case <-ended:
		case <-late.C:
			l.child.ClosePipes()
			l.conn.Close()
			return
		}
	}
}

func (l *stdioLink) transport() mcp.Transport { return l.conn }

func (l *stdioLink) watch(c *mcp.Client) { c.AddReceivingMiddleware(l.conn.detectFences) }

func (l *stdioLink) pid() int { return l.child.PID }

func (l *stdioLink) gone() <-chan struct{} { return l.child.Done() }

// cause waits briefly for the end of a program whose pipe has ended: a busy kernel takes its time.
func (l *stdioLink) cause(session error) error {
	select {
	case <-l.conn.ended:
		if l.conn.huge {
			return errHuge
		}
	default:
	}
	late := time.NewTimer(l.times.grace)
	defer late.Stop()
	select {
	case <-l.child.Done():
		return fmt.Errorf("the program ended: %s", l.child.Ending())
	case <-late.C:
	}
	if session == nil || errors.Is(session, mcp.ErrConnectionClosed) || errors.Is(session, io.EOF) {
		return errors.New("the program closed its stdout or does not read its stdin")
	}
	return session
}

// end ends the program with everything that it has started.
func (l *stdioLink) end() error {
	left := l.child.End(l.times.grace)
	l.conn.Close()
	l.child.ClosePipes()
	<-l.copied
	<-l.conn.ended
	if left > 0 {
		return fmt.Errorf("%d of its processes can't be ended", left)
	}
	return nil
}

var _ link = (*stdioLink)(nil)
