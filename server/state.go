package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// state is the private directory tree of one browser-shell process.
//
//	BASE/               0700, this user's: state_dir, or TMP/browser-shell-UID
//	  .lock             held while a run directory is made or swept
//	  artifacts/        screenshots, a directory a session; they stay
//	  run-XXXX/         this process; gone when it ends
//	    lock            held for the life of the process
//	    s/ h/ t/ w/ o/  sockets, HOME, TMPDIR, empty working directory, screenshots
//	    config.json     {} : keeps newer versions from reading other config files
type state struct {
	base string
	run  string
	lock *os.File
	root *os.Root // of base: never follows a link out of it
}

// maxSocketPath is what agent-browser can bind: sun_path less some.
const maxSocketPath = 103

// openState makes the tree and ends what a killed predecessor left behind.
func openState(dir string) (*state, error) {
	if dir == "" {
		dir = filepath.Join(os.TempDir(), fmt.Sprintf("browser-shell-%d", os.Getuid()))
	}
	if err := privateDir(dir); err != nil {
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
	st := &state{base: dir}
	if err := st.create(); err != nil {
		st.close()
		return nil, err
	}
	return st, nil
}

// privateDir makes dir, or checks that it is a real directory of this user
// that nobody else can enter: someone else may have made it first.
func privateDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("state directory: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(st.Uid) != os.Getuid() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("state directory %s: must be a directory of user %d with mode 0700; remove it or set state_dir in the policy file", dir, os.Getuid())
	}
	return nil
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
	for _, d := range []string{"s", "h", "t", "w", "o"} {
		if err := os.Mkdir(filepath.Join(st.run, d), 0o700); err != nil {
			return fmt.Errorf("state directory: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(st.run, "config.json"), []byte("{}\n"), 0o400); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	st.root, err = os.OpenRoot(st.base)
	return err
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
		"AGENT_BROWSER_IDLE_TIMEOUT_MS=600000",
		"AGENT_BROWSER_NO_VERSION_CHECK=1",
		runMark(st.run),
		sessionMark(name),
	}
}

func runMark(dir string) string      { return "BROWSER_SHELL_RUN=" + dir }
func sessionMark(name string) string { return "BROWSER_SHELL_SESSION=" + name }

// hasDaemon tells whether the session's daemon has registered itself.
func (st *state) hasDaemon(name string) bool {
	_, err := os.Lstat(filepath.Join(st.sockets(), name+".pid"))
	return err == nil
}

// endDaemon ends everything that runs for a session and removes its files. It
// never asks agent-browser: its own close starts a daemon to close it, and
// fails when Chromium is down. keepTab leaves the file by which newer versions
// find the session's tab again.
func (st *state) endDaemon(name string, keepTab bool) {
	endProcesses(runMark(st.run), sessionMark(name))
	files, _ := filepath.Glob(filepath.Join(st.sockets(), name+".*")) // the pattern is well-formed
	for _, f := range files {
		if !keepTab || filepath.Ext(f) != ".target" {
			os.Remove(f)
		}
	}
}

// close ends all daemons and removes the run directory. The artifacts stay.
func (st *state) close() {
	if st.run != "" {
		endProcesses(runMark(st.run))
		os.RemoveAll(st.run)
	}
	if st.root != nil {
		st.root.Close()
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
		endProcesses(runMark(dir))
		os.RemoveAll(dir)
		lock.Close()
	}
	return nil
}
