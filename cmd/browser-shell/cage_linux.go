package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/slimctl/slimctl/server/cage"
	"github.com/slimctl/slimctl/server/policy"
)

// display is the socket of the X server.
const display = "/tmp/.X11-unix/X99"

// common lists the paths that every caged program may read: libraries, fonts, and names and numbers of the machine. The
// files of /etc are listed one by one, since our policy files are there, too.
var common = []string{
	"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share", "/usr/local/share", "/proc", "/sys",
	"/etc/alternatives", "/etc/fonts", "/etc/group", "/etc/gtk-3.0", "/etc/hosts", "/etc/ld.so.cache", "/etc/locale.alias",
	"/etc/localtime", "/etc/machine-id", "/etc/mime.types", "/etc/nsswitch.conf", "/etc/os-release", "/etc/passwd",
	"/etc/resolv.conf", "/etc/ssl", "/etc/timezone", "/etc/xdg", "/etc/X11", "/opt/gem/openbox.xml",
	"/var/cache/fontconfig",
}

// loaders lists the dynamic loaders, which start programs that aren't static (Linux Standard Base, "Program
// interpreter"). A loader by itself starts only files that the program may read, and none as a program with other
// rights.
var loaders = []string{"/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"}

// chooseRules returns the rules of the named cage. A page may take over its program, directly or through the browser.
func chooseRules(name, program string) (cage.Rules, error) {
	real, err := filepath.EvalSymlinks(program)
	if at := (*fs.PathError)(nil); errors.As(err, &at) {
		err = at.Err
	}
	if err != nil {
		return cage.Rules{}, fmt.Errorf("start %s: %w", program, err)
	}
	r := cage.Rules{
		Read:    common,
		Execute: append([]string{real}, loaders...),
		Write:   []string{"/home/gem", "/tmp", "/dev/shm"},
		Devices: []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"},
	}
	switch name {
	case "browser":
		r.Read = append(slices.Clip(common), "/etc/chromium", "/etc/opt/chrome", "/etc/opt/chrome_for_testing", "/etc/browser")
		r.Execute[0] = filepath.Dir(real) // includes its crash reporter
		r.Listen, r.Proxy, r.Display = []uint16{9222}, 8118, display
	case "desktop": // compiles its keyboard layout with a shell at each start
		r.Execute = append(r.Execute, "/bin/sh", "/usr/bin/xkbcomp")
		r.Write = append(r.Write, "/var/lib/xkb")
		r.Listen = []uint16{5900}
	case "windows":
		r.Display = display
	default:
		return cage.Rules{}, fmt.Errorf("--cage %q: use browser, desktop or windows", name)
	}
	return r, nil
}

// startCaged starts the program in its cage. This process is the cage's supervisor and ends with the program; with
// entered it becomes the program.
func startCaged(name string, argv []string, entered bool, std stdio) error {
	r, err := chooseRules(name, argv[0])
	if err != nil {
		return err
	}
	if entered {
		p, err := policy.Load(policy.DefaultPath)
		if err != nil {
			return err
		}
		return r.Enter(argv, os.Environ(), p.Cage == "required")
	}
	// supervisord signals the whole process group; the supervisor must stay until the program in the cage has ended.
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	// By hand it runs beside a browser, or on a machine whose /tmp it must leave alone.
	if name == "browser" && os.Getenv("SUPERVISOR_ENABLED") != "" && os.Getuid() == desktopAccount.uid {
		if err := recordStart(startsFile, time.Now()); err != nil {
			fmt.Fprintln(std.err, "browser-shell start: health does not know of this start:", err)
		}
		if err := emptyDirs(append(slices.Clip(r.Write), filepath.Dir(display))); err != nil {
			fmt.Fprintln(std.err, "browser-shell start: what an earlier browser wrote is left:", err)
		}
	}
	enter := enterCommand(context.Background(), name, argv...)
	enter.Stdin, enter.Stdout, enter.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cage.Supervise(r, enter, func(format string, args ...any) {
		fmt.Fprintf(std.err, "cage of the "+name+": "+format+"\n", args...)
	})
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return exitStatus{max(1, ended.ExitCode()), fmt.Sprintf("%s ended in its cage: %v", argv[0], ended)}
	}
	return err
}

// emptyDirs removes what an earlier browser, or a page that took it over, has written: its profile with the locks, files
// that take the container's memory. The X server's files stay, and those of other accounts.
func emptyDirs(dirs []string) error {
	var errs []error
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		errs = append(errs, err)
		for _, e := range entries {
			info, err := e.Info()
			if err != nil || int(info.Sys().(*syscall.Stat_t).Uid) != os.Getuid() || ofDisplay(info) {
				continue
			}
			path := filepath.Join(dir, e.Name())
			_ = filepath.WalkDir(path, func(path string, d fs.DirEntry, _ error) error {
				if d != nil && d.IsDir() {
					_ = os.Chmod(path, 0o700) // to remove what is in it
				}
				return nil
			})
			errs = append(errs, os.RemoveAll(path))
		}
	}
	return errors.Join(errs...)
}

// ofDisplay reports whether a file is the X server's: its sockets' directory, socket, lock, or the keyboard that it
// compiles at its start. The browser can write them, too, so a large one is not.
func ofDisplay(info fs.FileInfo) bool {
	switch info.Name() {
	case ".X11-unix":
		return info.IsDir()
	case "X99", ".X99-lock", "server-99.xkm":
		return !info.IsDir() && info.Size() <= 64<<10
	}
	return false
}

// enterCommand returns the command that enters a cage and becomes the program; this process is its supervisor.
func enterCommand(ctx context.Context, name string, argv ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "/proc/self/exe", append([]string{"start", "--cage", name, "--entered"}, argv...)...)
}

// probeCages enters the browser's cage, which uses every mechanism, and returns the mechanisms that this machine lacks.
func probeCages(ctx context.Context) (missing []string, err error) {
	have, err := cage.Probe(enterCommand(ctx, "browser", "/dev/null")) // which is never started
	return have.Missing(), err
}
