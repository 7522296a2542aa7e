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
	idle time.Duration // after which an idle daemon exits
}

// maxSocketPath is the maximum length of a socket path for agent-browser: a little less than sun_path.
const maxSocketPath = 103

// openState creates the tree and ends the processes of a killed predecessor. An abandoned daemon exits some time after
// its session would end.
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
	if err := sweepRuns(dir); err != nil {
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

// lockAlone takes the lock for the single session of all processes. It returns an error if another process has it.
func (st *state) lockAlone() (*os.File, error) {
	return lockFile(filepath.Join(st.base, ".alone"), syscall.LOCK_EX|syscall.LOCK_NB)
}

func (st *state) sockets() string { return filepath.Join(st.run, "s") }
func (st *state) workDir() string { return filepath.Join(st.run, "w") }

// buildEnv returns the complete environment of agent-browser for one session; it inherits nothing. The two
// BROWSER_SHELL variables mark the daemon for endProcesses.
func (st *state) buildEnv(searchPath, name string) []string {
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

// writeTarget writes the file that pins a session of a newer version to its tab. It must exist before the daemon
// starts.
func (st *state) writeTarget(name string, text []byte) error {
	if err := os.WriteFile(filepath.Join(st.sockets(), name+".target"), text, 0o600); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	return nil
}

// hasDaemon reports whether the session's daemon has written its pid file.
func (st *state) hasDaemon(name string) bool {
	_, err := os.Lstat(filepath.Join(st.sockets(), name+".pid"))
	return err == nil
}

// listens reports whether the session's daemon has opened its socket since the given time.
func (st *state) listens(name string, since time.Time) bool {
	info, err := os.Lstat(filepath.Join(st.sockets(), name+".sock"))
	return err == nil && !info.ModTime().Before(since)
}

// openDaemon returns a handle of the session's daemon process.
func (st *state) openDaemon(name string) (*os.Process, error) {
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

// endDaemon ends all processes of a session and removes its files. It never uses `agent-browser close`, which starts a
// daemon to close it and fails if Chromium is down. The file that pins the session to its tab stays, as the tab does.
func (st *state) endDaemon(name string) {
	process.End(runMark(st.run), sessionMark(name))
	files, _ := filepath.Glob(filepath.Join(st.sockets(), name+".*")) // the pattern is valid
	for _, f := range files {
		if filepath.Ext(f) != ".target" {
			os.Remove(f)
		}
	}
}

// removeTarget removes the file that pins a session to its tab.
func (st *state) removeTarget(name string) {
	_ = os.Remove(filepath.Join(st.sockets(), name+".target"))
}

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

// sweepRuns ends the remaining processes of predecessors that didn't exit cleanly, and removes their run directories.
// These are no longer locked.
func sweepRuns(base string) error {
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
			continue // its process is alive
		}
		process.End(runMark(dir))
		os.RemoveAll(dir)
		lock.Close()
	}
	return nil
}
