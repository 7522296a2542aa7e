package overlays

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/slimctl/slimctl/internal/capture"
)

// npmArgs override the settings in the user's configuration that would change the tree.
var npmArgs = []string{
	"ci", "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund",
	"--bin-links=false", "--dry-run=false", "--engine-strict=false", "--global=false", "--install-strategy=hoisted",
	"--location=project", "--loglevel=error", "--package-lock=true", "--progress=false", "--update-notifier=false",
	"--workspaces=false",
}

// install runs npm ci for the lock in the new directory work, checks the integrity that npm verified, and moves the
// files that the rules keep to stage.
func (l *lock) install(ctx context.Context, work, stage string, o Options) error {
	if err := os.Mkdir(work, 0o700); err != nil {
		return err
	}
	for name, data := range map[string][]byte{"package.json": l.pkg, "package-lock.json": l.lock} {
		if err := os.WriteFile(filepath.Join(work, name), data, 0o600); err != nil {
			return err
		}
	}
	if err := run(ctx, work, npmEnv(os.Environ()), nil, o.npm(), npmArgs...); err != nil {
		return l.explain(err)
	}
	modules := filepath.Join(work, "node_modules")
	data, err := os.ReadFile(filepath.Join(modules, ".package-lock.json"))
	if err != nil {
		return fmt.Errorf("agent-browser %s: npm ci wrote no list of installed packages (is the disk full?): %w", l.version, err)
	}
	verified, err := lockedIntegrity(data)
	if err != nil {
		return err
	}
	if verified != l.integrity {
		return fmt.Errorf("agent-browser %s: %w: npm installed %q, but %q is pinned", l.version, ErrIntegrity, verified, l.integrity)
	}
	return prune(modules, stage, l.keep)
}

// run executes a program in dir, in its own process group, which is killed when ctx ends. Standard output goes to
// stdout, or into the error if stdout is nil. The error is a *toolError, or ctx's.
func run(ctx context.Context, dir string, env []string, stdout io.Writer, name string, args ...string) error {
	exe, err := exec.LookPath(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, ErrNoTool)
	}
	cmd := exec.CommandContext(ctx, exe, args...)
	out := capture.Tail{Max: maxOutput}
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, env, &out, &out
	if stdout != nil {
		cmd.Stdout = stdout
	}
	cmd.WaitDelay = 5 * time.Second
	setGroup(cmd)
	err = cmd.Run()
	if ctx.Err() != nil {
		return fmt.Errorf("%s stopped: %w", name, context.Cause(ctx))
	}
	if err != nil {
		return &toolError{command: name + " " + args[0], output: string(out.Bytes()), err: err}
	}
	return nil
}

// setGroup makes cmd start its own process group and kill all of it, because npm starts children.
func setGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if cmd.Cancel != nil { // set by exec.CommandContext only
		cmd.Cancel = func() error { return killGroup(cmd) }
	}
}

func killGroup(cmd *exec.Cmd) error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }

// maxOutput limits the kept output of a program, in bytes.
const maxOutput = 16 << 10

// toolError is the failure of a program, with the end of its output.
type toolError struct {
	command, output string
	err             error
}

func (e *toolError) Error() string {
	return fmt.Sprintf("%s: %v: %s", e.command, e.err, firstLines(e.output))
}

func (e *toolError) Unwrap() error { return e.err }

// firstLines returns at most six lines of s joined to one, without control characters. npm and go write the cause
// first.
func firstLines(s string) string {
	lines := strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' })
	lines = lines[:min(len(lines), 6)]
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.Join(lines, "; "))
	if clean == "" {
		return "(no output)"
	}
	return clean
}

var npmCode = regexp.MustCompile(`(?m)^npm (?:error|ERR!) code (\S+)`)

// npmHints maps npm's error codes to remedies.
var npmHints = map[string]string{
	"E401":         "the registry wants credentials: log in with npm",
	"E403":         "the registry refuses: check npm's credentials",
	"E404":         "the registry that npm uses has no such version",
	"EAI_AGAIN":    noNetwork,
	"ECONNREFUSED": noNetwork,
	"ECONNRESET":   noNetwork,
	"ENETUNREACH":  noNetwork,
	"ENOTCACHED":   noNetwork,
	"ENOTFOUND":    noNetwork,
	"ETIMEDOUT":    noNetwork,
	"ENOSPC":       "the disk is full",
	"ETARGET":      "the registry that npm uses has no such version",
	"EINTEGRITY":   "the registry served another file than the pinned one",
}

const noNetwork = "the registry can't be reached; use --payload DIR with a directory that `slimctl payload fetch -o DIR` wrote elsewhere"

// explain adds the remedy for npm's error code.
func (l *lock) explain(err error) error {
	var failed *toolError
	if errors.Is(err, ErrNoTool) {
		return fmt.Errorf("%w: install npm to fetch agent-browser %s, or use --payload DIR", err, l.version)
	}
	if !errors.As(err, &failed) {
		return fmt.Errorf("agent-browser %s: %w", l.version, err)
	}
	code := ""
	if m := npmCode.FindStringSubmatch(failed.output); m != nil {
		code = m[1]
	}
	if code == "EINTEGRITY" {
		err = fmt.Errorf("%w: %w", ErrIntegrity, err)
	}
	if hint, ok := npmHints[code]; ok {
		return fmt.Errorf("agent-browser %s: %s: %w", l.version, hint, err)
	}
	return fmt.Errorf("agent-browser %s: %w", l.version, err)
}

// npmPass are the variables that npm may see: the place of its configuration and how to reach the network. npmEnv adds
// those that the configuration names. NODE_OPTIONS is excluded because it can load code.
var npmPass = []string{
	"PATH", "HOME", "USER", "LANG", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "NODE_AUTH_TOKEN", "NODE_EXTRA_CA_CERTS",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "PREFIX",
	"APPDATA", "LOCALAPPDATA", "USERPROFILE", "SYSTEMROOT", "COMSPEC", "PATHEXT", "TEMP", "TMP",
}

// npmEnv returns the part of env that npm needs to work with the user's configuration.
func npmEnv(env []string) []string {
	pass := slices.Concat(npmPass, namedInNpmrc(env))
	var out []string
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		upper := strings.ToUpper(name)
		// It is set by an npm that runs slimctl, for the npm project around it.
		if upper == "NPM_CONFIG_LOCAL_PREFIX" {
			continue
		}
		if slices.Contains(pass, upper) || slices.Contains(pass, name) || strings.HasPrefix(upper, "NPM_") {
			out = append(out, kv)
		}
	}
	return out
}

var npmrcVariable = regexp.MustCompile(`\$\{(\w+)\??\}`)

// namedInNpmrc returns the names of the variables in the user's .npmrc, written there as ${NAME}.
func namedInNpmrc(env []string) []string {
	at := map[string]string{}
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		at[strings.ToUpper(name)] = value
	}
	rc := at["NPM_CONFIG_USERCONFIG"]
	if rc == "" {
		rc = filepath.Join(at["HOME"], ".npmrc")
	}
	data, err := os.ReadFile(rc)
	if err != nil {
		return nil
	}
	var out []string
	for _, m := range npmrcVariable.FindAllSubmatch(data, -1) {
		if name := string(m[1]); name != "NODE_OPTIONS" {
			out = append(out, name)
		}
	}
	return out
}
