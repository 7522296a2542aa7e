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

	"github.com/slimctl/slimctl/server/cage"
	"github.com/slimctl/slimctl/server/policy"
)

// display is the socket of the X server.
const display = "/tmp/.X11-unix/X99"

// common is what each of the programs reads: libraries, fonts, names and numbers of the machine. It lists the files
// of /etc one by one, since our policy files are there, too.
var common = []string{
	"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share", "/usr/local/share", "/proc", "/sys",
	"/etc/alternatives", "/etc/fonts", "/etc/group", "/etc/gtk-3.0", "/etc/hosts", "/etc/ld.so.cache", "/etc/locale.alias",
	"/etc/localtime", "/etc/machine-id", "/etc/mime.types", "/etc/nsswitch.conf", "/etc/os-release", "/etc/passwd",
	"/etc/resolv.conf", "/etc/ssl", "/etc/timezone", "/etc/xdg", "/etc/X11", "/opt/gem/openbox.xml",
	"/var/cache/fontconfig",
}

// loaders start programs that aren't static (Linux Standard Base, "Program interpreter"). One alone starts nothing
// that the program may not read, and of that nothing as a program of its own.
var loaders = []string{"/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"}

// chooseRules returns the rules of a named cage for a program that a page may take over, directly or through the
// browser.
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
		r.Read = append(slices.Clip(common), "/etc/chromium", "/etc/opt/chrome", "/etc/browser")
		r.Execute[0] = filepath.Dir(real) // and its crash reporter
		r.Listen, r.Proxy, r.Display = []uint16{9222}, 8118, display
	case "desktop": // compiles its keyboard's layout by a shell, at each start
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

// startCaged becomes the program in its cage, or its supervisor, which ends with it.
func startCaged(name string, argv []string, entered bool, std stdio) error {
	r, err := chooseRules(name, argv[0])
	if err != nil {
		return err
	}
	say := func(format string, args ...any) {
		fmt.Fprintf(std.err, "cage of the "+name+": "+format+"\n", args...)
	}
	if entered || !r.Connects() {
		p, err := policy.Load(policy.DefaultPath)
		if err != nil {
			return err
		}
		return r.Enter(argv, os.Environ(), p.Cage == "required", say)
	}
	// supervisord signals the whole process group; the supervisor stays until the program in the cage has ended.
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	enter := enterCommand(context.Background(), name, argv...)
	enter.Stdin, enter.Stdout, enter.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cage.Supervise(r, enter, say)
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return exitStatus(max(1, ended.ExitCode()))
	}
	return err
}

// enterCommand returns the command that becomes the program in a cage whose supervisor is this process.
func enterCommand(ctx context.Context, name string, argv ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "/proc/self/exe", append([]string{"start", "--cage", name, "--entered"}, argv...)...)
}

// probeCages enters the browser's cage, which has all parts, and returns those that are missing here.
func probeCages(ctx context.Context) (missing []string, err error) {
	const program = "/dev/null" // which nothing starts
	r, err := chooseRules("browser", program)
	if err != nil {
		return nil, err
	}
	have, err := cage.Probe(enterCommand(ctx, "browser", program))
	return have.Missing(r), err
}
