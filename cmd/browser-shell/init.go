package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/server/egress"
	"github.com/slimctl/slimctl/server/front"
	"github.com/slimctl/slimctl/server/gate"
	"github.com/slimctl/slimctl/server/policy"
)

// gateFile is the file that `init` writes for `serve --gate`.
const gateFile = "/run/browser-shell/gate.json"

// supervisor is the command that `init` becomes.
var supervisor = []string{"/usr/bin/supervisord", "-n", "-c", "/opt/gem/supervisord.conf"}

// errConfig marks errors in the operator's settings: exit code 78, EX_CONFIG of sysexits.h. A restart can't help.
var errConfig = errors.New("configuration")

// account is a user in the image's /etc/passwd.
type account struct {
	name     string
	uid, gid int
}

var (
	root           = account{"root", 0, 0}
	desktopAccount = account{"gem", 1000, 1000}           // Xvnc, openbox, the browser
	serviceAccount = account{"browser-shell", 1001, 1001} // browser-shell and agent-browser
)

// accounts holds the account of each program. Started as root, supervisord and nginx's master stay root; otherwise all
// three are gem.
type accounts struct{ self, desktop, service account }

func chooseAccounts(uid int) (accounts, error) {
	switch uid {
	case root.uid:
		return accounts{root, desktopAccount, serviceAccount}, nil
	case desktopAccount.uid:
		return accounts{desktopAccount, desktopAccount, desktopAccount}, nil
	}
	return accounts{}, fmt.Errorf("started as user %d: start the container as root, or as %[2]d:%[2]d with --user %[2]d:%[2]d (runAsUser: %[2]d)", uid, desktopAccount.uid)
}

// place is a directory that a program writes to.
type place struct {
	path  string
	owner account
	mode  fs.FileMode
}

// places returns all directories that programs write to, in the order of creation. With a read-only root the top
// directories are mounts.
func (a accounts) places() []place {
	return []place{
		{"/tmp", a.self, 0o777 | fs.ModeSticky},
		{"/tmp/.X11-unix", a.self, 0o777 | fs.ModeSticky},
		{"/home/gem", a.desktop, 0o700},
		{"/output", a.service, 0o755},
		{"/run/browser-shell", a.service, 0o700},
		{"/run/browser-shell-front", a.service, 0o710}, // the sockets of MCP and gate; nginx's worker is in the group
		{"/run/desktop", a.desktop, 0o755},
		{"/run/nginx", a.self, 0o755},
		{"/run/supervisor", a.self, 0o700},
		{"/var/lib/browser-shell", a.service, 0o700},
		// The audit log is usually on a volume. A volume may belong to anybody, so the log is in a subdirectory that
		// only its writer can enter.
		{"/var/log/browser-shell", a.self, 0o755},
		{"/var/log/browser-shell/audit", a.service, 0o700},
		{logDir, a.self, 0o700}, // contains addresses that pages and agents used
	}
}

const logDir = "/var/log/gem"

// plan is the result of the operator's environment variables.
type plan struct {
	accounts
	gate     gate.Config
	outgoing egress.Outgoing
	env      []string // the complete environment of the programs
}

// readPlan returns the plan for the operator's variables; it reads no others. hasIPv6 reports whether a socket can be
// bound to an address.
func readPlan(getenv func(string) string, uid int, hasIPv6 func(address string) bool) (plan, error) {
	a, err := chooseAccounts(uid)
	if err != nil {
		return plan{}, err
	}
	g, err1 := gate.FromEnv(getenv)
	zone, err2 := checkTimeZone(getenv("TZ"))
	screen, err3 := checkScreenSize(getenv("SLIM_SCREEN"))
	languages, err4 := checkLanguages(getenv("SLIM_LANG"))
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return plan{}, fmt.Errorf("%w: %w", errConfig, err)
	}
	home := "/root"
	if a.self != root {
		home = "/home/gem"
	}
	return plan{a, g, egress.Outgoing{}, []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + home,
		"LANG=C.UTF-8",
		"TZ=" + zone,
		"SLIM_SUPERVISOR_USER=" + a.self.name,
		"SLIM_DESKTOP_USER=" + a.desktop.name,
		"SLIM_SERVICE_USER=" + a.service.name,
		"SLIM_NGINX_CONF=" + chooseNginxConf(getenv("SLIM_LISTEN"), hasIPv6),
		"SLIM_SCREEN=" + screen,
		"SLIM_WINDOW=" + strings.Replace(screen, "x", ",", 1),
		"SLIM_LANG=" + languages,
	}}, nil
}

// chooseNginxConf returns one of nginx's main files. SLIM_LISTEN, which gate.FromEnv has checked, can narrow the
// listening addresses, not widen them.
func chooseNginxConf(listen string, hasIPv6 func(address string) bool) string {
	name, address := "/opt/gem/nginx", "[::]:0"
	if listen != "" {
		name, address = name+"-loopback", "[::1]:0"
	}
	if !hasIPv6(address) {
		name += "-ipv4"
	}
	return name + ".conf"
}

func canListen(address string) bool {
	l, err := net.Listen("tcp6", address)
	if err == nil {
		_ = l.Close() // nothing was accepted
	}
	return err == nil
}

var zoneName = regexp.MustCompile(`^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$`)

// checkTimeZone checks a name of the time zone database. The C library would open any file that TZ names.
func checkTimeZone(name string) (string, error) {
	name = cmp.Or(name, "UTC")
	if len(name) > 64 || !zoneName.MatchString(name) {
		return "", errors.New("TZ: must be the name of a time zone, such as Europe/Berlin")
	}
	return name, nil
}

// screenPattern matches a width and a height. The match becomes part of the command lines of Xvnc and the browser.
var screenPattern = regexp.MustCompile(`^([1-9][0-9]{2,3})x([1-9][0-9]{2,3})$`)

// checkScreenSize returns the size of the desktop in pixels, at most 3840x2160. That size takes 32 MB; a larger one
// only takes more memory.
func checkScreenSize(size string) (string, error) {
	size = cmp.Or(size, "1280x1024")
	if m := screenPattern.FindStringSubmatch(size); m != nil {
		width, _ := strconv.Atoi(m[1]) // the pattern has only digits
		height, _ := strconv.Atoi(m[2])
		if width >= 320 && width <= 3840 && height >= 240 && height <= 2160 {
			return size, nil
		}
	}
	return "", errors.New("SLIM_SCREEN: must be WIDTHxHEIGHT in pixels, from 320x240 to 3840x2160, such as 1280x800")
}

// languagePattern matches up to eight language tags (BCP 47) without variants and extensions. The match becomes part of
// the browser's command line.
var languagePattern = regexp.MustCompile(`^[a-z]{2,3}(-[A-Z][a-z]{3})?(-[A-Z]{2})?(,[a-z]{2,3}(-[A-Z][a-z]{3})?(-[A-Z]{2})?){0,7}$`)

// checkLanguages returns the languages that the browser requests from pages, the best first.
func checkLanguages(tags string) (string, error) {
	tags = cmp.Or(tags, "en-US,en")
	if !languagePattern.MatchString(tags) {
		return "", errors.New("SLIM_LANG: must be up to eight language tags, the best first, such as de or de-CH,de,en")
	}
	return tags, nil
}

// checkFiles reads the files of browser-shell before anything starts. Otherwise supervisord would restart it again and
// again, with the reason only in a log inside the container.
func checkFiles() error {
	_, err1 := policy.Load(policy.DefaultPath)
	if err := errors.Join(err1, front.CheckConfig(front.DefaultConfig)); err != nil {
		return fmt.Errorf("%w: %w", errConfig, err)
	}
	return nil
}

// tetherSocket is the socket by which the egress proxy reaches the tether. Only the service account can enter its
// directory.
const tetherSocket = "/run/browser-shell/tether.sock"

// publicPort is the address at which the image answers.
const publicPort = "127.0.0.1:8080"

// exitStatus is the end of a program that this one was there for. Its status becomes this one's.
type exitStatus struct {
	code int
	text string
}

func (e exitStatus) Error() string { return e.text }

// runInit is the image's entry point: it prepares the programs' directories and becomes supervisord. With --tether it
// starts supervisord and stays, to carry connections and to end the container when slimctl is gone.
func runInit(ctx context.Context, args []string, std stdio) error {
	flags := flag.NewFlagSet("init", flag.ContinueOnError)
	tethered := flags.Bool("tether", false, "carry all connections over standard input and output, to slimctl")
	hold := flags.Bool("hold", false, "be what --tether becomes")
	if err := parseFlags(flags, args, std.err); err != nil {
		return err
	}
	if *hold {
		a, err := chooseAccounts(os.Getuid())
		if err != nil {
			return err
		}
		return plan{accounts: a, env: os.Environ()}.superviseTethered(ctx)
	}
	p, err := readPlan(os.Getenv, os.Getuid(), canListen)
	if err != nil {
		return err
	}
	if err := doAs(p.service, p.self, checkFiles); err != nil {
		return err
	}
	if *tethered {
		p.outgoing.Proxy = "unix:" + tetherSocket
	}
	if err := p.prepare("/"); err != nil {
		return err
	}
	if *tethered { // removes the key from the environment of the process that stays
		return becomeProgram([]string{"/usr/local/bin/browser-shell", "init", "--hold"}, p.env)
	}
	if err := keepOutput(); err != nil {
		return err
	}
	return becomeProgram(supervisor, p.env)
}
