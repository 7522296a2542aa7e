package overlays

import (
	"bytes"
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
)

// npmArgs come after the user's configuration and win over what in it would change the tree.
var npmArgs = []string{
	"ci", "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund",
	"--bin-links=false", "--dry-run=false", "--engine-strict=false", "--global=false", "--install-strategy=hoisted",
	"--location=project", "--loglevel=error", "--package-lock=true", "--progress=false", "--update-notifier=false",
	"--workspaces=false",
}

// install runs npm ci for the lock in work, which it makes, checks what npm says it verified, and moves what the rules
// keep to stage.
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
		return fmt.Errorf("agent-browser %s: npm ci left no list of what it installed (is the disk full?): %w", l.version, err)
	}
	verified, err := lockedIntegrity(data)
	if err != nil {
		return err
	}
	if verified != l.integrity {
		return fmt.Errorf("agent-browser %s: %w: npm installed %q, pinned is %q", l.version, ErrIntegrity, verified, l.integrity)
	}
	return prune(modules, stage, l.keep)
}

// run runs a program in dir, in a process group of its own that dies with ctx. Its standard output goes to stdout, or if that
// is nil into the error with its standard error. The error is a *toolError, or ctx's.
func run(ctx context.Context, dir string, env []string, stdout io.Writer, name string, args ...string) error {
	exe, err := exec.LookPath(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, ErrNoTool)
	}
	cmd := exec.CommandContext(ctx, exe, args...)
	var out tail
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, env, &out, &out
	if stdout != nil {
		cmd.Stdout = stdout
	}
	cmd.WaitDelay = 5 * time.Second
	ownGroup(cmd)
	err = cmd.Run()
	if ctx.Err() != nil {
		return fmt.Errorf("%s stopped: %w", name, context.Cause(ctx))
	}
	if err != nil {
		return &toolError{command: name + " " + args[0], output: string(out.data), err: err}
	}
	return nil
}

// ownGroup puts cmd in a process group that is killed as a whole: npm starts children.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if cmd.Cancel != nil { // made by exec.CommandContext
		cmd.Cancel = func() error { return killGroup(cmd) }
	}
}

func killGroup(cmd *exec.Cmd) error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }

// tail keeps the end of what a program printed.
type tail struct{ data []byte }

const tailBytes = 16 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.data = append(t.data, p...)
	if extra := len(t.data) - tailBytes; extra > 0 {
		t.data = bytes.Clone(t.data[extra:])
	}
	return len(p), nil
}

// toolError is a program that ended with an error, and what it said.
type toolError struct {
	command, output string
	err             error
}

func (e *toolError) Error() string {
	return fmt.Sprintf("%s: %v: %s", e.command, e.err, firstLines(e.output))
}

func (e *toolError) Unwrap() error { return e.err }

// firstLines gives at most six lines as one, without control characters: npm and go say what is wrong first.
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

// npmHints say what to do, by npm's error code.
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

// explain turns npm's code into words.
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

// npmPass are the variables that npm may see: where its configuration is, how to reach the network, and (below) those
// that the configuration itself names. NODE_OPTIONS is not among them: it can load code.
var npmPass = []string{
	"PATH", "HOME", "USER", "LANG", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "NODE_AUTH_TOKEN", "NODE_EXTRA_CA_CERTS",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "PREFIX",
	"APPDATA", "LOCALAPPDATA", "USERPROFILE", "SYSTEMROOT", "COMSPEC", "PATHEXT", "TEMP", "TMP",
}

// npmEnv picks from env what npm needs to act by the user's own configuration.
func npmEnv(env []string) []string {
	pass := slices.Concat(npmPass, namedInNpmrc(env))
	var out []string
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		upper := strings.ToUpper(name)
		// Set by an npm that runs us, for its own project.
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

// namedInNpmrc lists the variables that the user's .npmrc refers to, as ${NAME}.
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
