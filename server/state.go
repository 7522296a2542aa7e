package server

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slimctl/slimctl/server/policy"
	"github.com/slimctl/slimctl/server/process"
)

// state is the private directory tree of one browser-shell process.
//
//	BASE/               0700, this user's: state_dir, or TMP/browser-shell-UID
//	  .lock             held while a run directory is made or swept
//	  .alone            held by the one session of agent-browser 0.8 to 0.19
//	  audit.jsonl       the audit log, unless the policy names another file
//	  artifacts/        screenshots and PDFs, a directory a run; they stay
//	  run-XXXX/         this process; gone when it ends
//	    lock            held for the life of the process
//	    s/ h/ t/ w/     sockets, HOME, TMPDIR, empty working directory
//	    config.json     {} : keeps newer versions from reading other config files
//	    actions.json    the newer versions' own list of allowed actions
type state struct {
	base string
	run  string
	lock *os.File
	idle time.Duration // after which a daemon ends by itself
}

// maxSocketPath is what agent-browser can bind: sun_path less some.
const maxSocketPath = 103

// openState makes the tree and ends what a killed predecessor left behind. A
// daemon that nobody ends by itself ends some time after sessions do.
func openState(dir string, idle time.Duration) (*state, error) {
	dir, err := policy.OpenStateDir(dir)
	if err != nil {
		return nil, err
	}
	lock, err := lockFile(filepath.Join(dir, ".lock"), syscall.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := sweep(dir); err != nil {
		return nil, err
	}
	st := &state{base: dir, idle: idle + 5*time.Minute}
	if err := st.create(); err != nil {
		st.close()
		return nil, err
	}
	return st, nil
}

func lockFile(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), how); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

func (st *state) create() (err error) {
	if st.run, err = os.MkdirTemp(st.base, "run-"); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	if n := len(filepath.Join(st.sockets(), daemonName("x")+".sock")); n > maxSocketPath {
		return fmt.Errorf("state directory %s: its path makes sockets of %d bytes, more than %d; set a shorter state_dir in the policy file", st.base, n, maxSocketPath)
	}
	if st.lock, err = lockFile(filepath.Join(st.run, "lock"), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return err
	}
	for _, d := range []string{"s", "h", "t", "w"} {
		if err := os.Mkdir(filepath.Join(st.run, d), 0o700); err != nil {
			return fmt.Errorf("state directory: %w", err)
		}
	}
	for name, text := range map[string]string{"config.json": "{}", "actions.json": actions()} {
		if err := os.WriteFile(filepath.Join(st.run, name), []byte(text+"\n"), 0o400); err != nil {
			return fmt.Errorf("state directory: %w", err)
		}
	}
	return nil
}

// alone takes the lock that only one session of all processes can have. It is
// an error if another one has it.
func (st *state) alone() (*os.File, error) {
	return lockFile(filepath.Join(st.base, ".alone"), syscall.LOCK_EX|syscall.LOCK_NB)
}

func (st *state) sockets() string { return filepath.Join(st.run, "s") }
func (st *state) workDir() string { return filepath.Join(st.run, "w") }

// env is the whole environment of agent-browser for one session; nothing is
// inherited. The two BROWSER_SHELL words mark the daemon for endProcesses.
func (st *state) env(searchPath, name string) []string {
	return []string{
		"PATH=" + searchPath,
		"LANG=C.UTF-8",
		"HOME=" + filepath.Join(st.run, "h"),
		"TMPDIR=" + filepath.Join(st.run, "t"),
		"AGENT_BROWSER_SOCKET_DIR=" + st.sockets(),
		"AGENT_BROWSER_CONFIG=" + filepath.Join(st.run, "config.json"),
		"AGENT_BROWSER_ACTION_POLICY=" + filepath.Join(st.run, "actions.json"),
		fmt.Sprintf("AGENT_BROWSER_IDLE_TIMEOUT_MS=%d", st.idle.Milliseconds()),
		"AGENT_BROWSER_NO_VERSION_CHECK=1",
		runMark(st.run),
		sessionMark(name),
	}
}

func runMark(dir string) string      { return "BROWSER_SHELL_RUN=" + dir }
func sessionMark(name string) string { return "BROWSER_SHELL_SESSION=" + name }

// writeTarget says which tab a session of a newer version is held to, before
// its daemon starts.
func (st *state) writeTarget(name string, text []byte) error {
	if err := os.WriteFile(filepath.Join(st.sockets(), name+".target"), text, 0o600); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	return nil
}

// hasDaemon tells whether the session's daemon has registered itself.
func (st *state) hasDaemon(name string) bool {
	_, err := os.Lstat(filepath.Join(st.sockets(), name+".pid"))
	return err == nil
}

// listens reports whether the session's daemon has its socket.
func (st *state) listens(name string) bool {
	_, err := os.Lstat(filepath.Join(st.sockets(), name+".sock"))
	return err == nil
}

// daemon holds the session's daemon.
func (st *state) daemon(name string) (*os.Process, error) {
	text, err := os.ReadFile(filepath.Join(st.sockets(), name+".pid"))
	if err != nil {
		return nil, fmt.Errorf("agent-browser's daemon has not registered itself: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid < 2 {
		return nil, fmt.Errorf("agent-browser's daemon registered itself as %.20q", text)
	}
	return os.FindProcess(pid)
}

// endDaemon ends everything that runs for a session and removes its files. It
// never asks agent-browser: its own close starts a daemon to close it, and
// fails when Chromium is down. The file that holds the session to its tab
// stays: the tab does too.
func (st *state) endDaemon(name string) {
	process.End(runMark(st.run), sessionMark(name))
	files, _ := filepath.Glob(filepath.Join(st.sockets(), name+".*")) // the pattern is well-formed
	for _, f := range files {
		if filepath.Ext(f) != ".target" {
			os.Remove(f)
		}
	}
}

// forget removes the file that holds a session to its tab.
func (st *state) forget(name string) { _ = os.Remove(filepath.Join(st.sockets(), name+".target")) }

// close ends all daemons and removes the run directory. The artifacts stay.
func (st *state) close() {
	if st.run != "" {
		process.End(runMark(st.run))
		os.RemoveAll(st.run)
	}
	if st.lock != nil {
		st.lock.Close()
	}
}

// sweep ends and removes what processes left that did not end cleanly: their
// run directories are no longer locked.
func sweep(base string) error {
	entries, err := os.ReadDir(base)
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), "run-") {
			continue
		}
		dir := filepath.Join(base, e.Name())
		lock, err := lockFile(filepath.Join(dir, "lock"), syscall.LOCK_EX|syscall.LOCK_NB)
		if err != nil {
			continue // its process lives
		}
		process.End(runMark(dir))
		os.RemoveAll(dir)
		lock.Close()
	}
	return nil
}
