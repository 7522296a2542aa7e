// Package policy decides what browser-shell may hand to agent-browser: a
// positive grammar of argv (grammar.go), a check of addresses (url.go) and the
// policy file that narrows or widens both within fixed bounds.
package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// DefaultPath is where the image keeps the policy file.
const DefaultPath = "/etc/agent-browser/browser-shell.policy.json"

// Policy is the policy file. A key that the file leaves out keeps its default.
type Policy struct {
	Version      int          `json:"version"` // 1
	AgentBrowser AgentBrowser `json:"agent_browser"`
	Commands     []string     `json:"commands"` // subcommands that may run
	Open         Open         `json:"open"`
	Screenshot   Screenshot   `json:"screenshot"`
	Limits       Limits       `json:"limits"`
	StateDir     string       `json:"state_dir"` // absolute; empty: a private directory of this user under the temporary directory
}

// AgentBrowser says which program runs and which Chromium it drives.
type AgentBrowser struct {
	Path       string `json:"path"`        // absolute path of the program
	SearchPath string `json:"search_path"` // its PATH; 0.8 to 0.19 look for node there
	CDPPort    int    `json:"cdp_port"`    // Chromium's DevTools port on this machine
}

// Screenshot says how screenshots come back.
type Screenshot struct {
	ReturnImage   bool `json:"return_image"`    // as image content besides the JSON
	MaxImageBytes int  `json:"max_image_bytes"` // a larger one is kept but not returned
}

// Limits bound one call.
type Limits struct {
	TimeoutSec    int `json:"timeout_sec"`     // when the call names none; 1 to max_timeout_sec
	MaxTimeoutSec int `json:"max_timeout_sec"` // 1 to 120
	OutputBytes   int `json:"output_bytes"`    // of stdout in a result; 1 KiB to 4 MiB
	MaxSessions   int `json:"max_sessions"`    // open at a time; 1 to 64
}

// Default is the policy without a file. It is also the file that the image
// carries, assets/policy/browser-shell.policy.json.
func Default() *Policy {
	return &Policy{
		Version: 1,
		AgentBrowser: AgentBrowser{
			Path:       "/usr/local/bin/agent-browser",
			SearchPath: "/usr/local/bin:/usr/bin:/bin",
			CDPPort:    9222,
		},
		Commands:   defaultCommands(),
		Open:       Open{AllowSchemes: []string{"https", "http"}, AllowHosts: []string{}, AllowHostSuffixes: []string{}},
		Screenshot: Screenshot{ReturnImage: true, MaxImageBytes: 2 << 20},
		Limits:     Limits{TimeoutSec: 30, MaxTimeoutSec: 120, OutputBytes: 256 << 10, MaxSessions: 8},
	}
}

func defaultCommands() []string {
	var names []string
	for _, row := range table {
		if !row.off {
			names = append(names, row.name)
		}
	}
	return names
}

// Load reads a policy file. Only the default path may be missing, which gives
// the default policy: a path that someone chose must be there, and a broken
// file never falls back to anything.
func Load(path string) (*Policy, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && path == DefaultPath {
		return Default(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("policy file: %w", err)
	}
	if st, err := os.Stat(path); err == nil && st.Mode().Perm()&0o002 != 0 {
		return nil, fmt.Errorf("policy file %s: anyone may write it (mode %04o); chmod o-w", path, st.Mode().Perm())
	}
	p, err := Parse(b)
	if err != nil {
		return nil, fmt.Errorf("policy file %s:%w", path, err)
	}
	return p, nil
}

// Parse reads the text of a policy file over the defaults. It refuses unknown,
// doubled and differently cased keys; errors begin with line:column.
func Parse(b []byte) (*Policy, error) {
	if err := strictKeys(b); err != nil {
		return nil, err
	}
	p := Default()
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(p); err != nil {
		offset := dec.InputOffset()
		var te *json.UnmarshalTypeError
		if errors.As(err, &te) {
			offset = te.Offset
			err = fmt.Errorf("%s must be %s, not %s", te.Field, te.Type, te.Value)
		}
		return nil, at(b, offset, err)
	}
	if err := p.validate(); err != nil {
		return nil, at(b, 0, err)
	}
	return p, nil
}

func at(b []byte, offset int64, err error) error {
	head := b[:min(int(offset), len(b))]
	line := 1 + bytes.Count(head, []byte("\n"))
	column := len(head) - bytes.LastIndexByte(head, '\n')
	return fmt.Errorf("%d:%d: %w", line, column, err)
}

// strictKeys compares every key with the ones a default policy has, because
// encoding/json lets a second key win and takes keys in any case.
func strictKeys(b []byte) error {
	text, err := json.Marshal(Default())
	if err != nil {
		return err
	}
	var known map[string]any
	if err := json.Unmarshal(text, &known); err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	tok, err := dec.Token()
	if err != nil {
		return at(b, dec.InputOffset(), fmt.Errorf("not JSON: %w", err))
	}
	if tok != json.Delim('{') {
		return at(b, 0, errors.New("a policy is a JSON object"))
	}
	if err := walk(dec, known, ""); err != nil {
		offset := dec.InputOffset()
		var ke *keyError
		if errors.As(err, &ke) {
			offset -= int64(len(ke.key) + len(`""`))
		}
		return at(b, offset, err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return at(b, dec.InputOffset(), errors.New("there is text after the policy; remove it"))
	}
	return nil
}

// keyError is about the key that was just read.
type keyError struct{ key, text string }

func (e *keyError) Error() string { return e.text }

// walk reads the rest of an object whose brace was read.
func walk(dec *json.Decoder, known map[string]any, path string) error {
	seen := map[string]bool{}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return err
		}
		key, _ := tok.(string) // the decoder yields only strings here
		want, ok := known[key]
		switch {
		case !ok:
			return &keyError{key, fmt.Sprintf("unknown key %q; known here: %s", path+key, strings.Join(sorted(known), ", "))}
		case seen[key]:
			return &keyError{key, fmt.Sprintf("key %q is given twice", path+key)}
		}
		seen[key] = true
		if err := walkValue(dec, want, path+key); err != nil {
			return err
		}
	}
	_, err := dec.Token() // the closing brace
	return err
}

func walkValue(dec *json.Decoder, want any, path string) error {
	if sub, ok := want.(map[string]any); ok {
		if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
			return fmt.Errorf("%s must be an object", path)
		}
		return walk(dec, sub, path+".")
	}
	var v any
	if err := dec.Decode(&v); err != nil {
		return err
	}
	if v == nil {
		return fmt.Errorf("%s may not be null; leave the key out for its default", path)
	}
	return nil
}

func sorted(m map[string]any) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func (p *Policy) validate() error {
	switch l := p.Limits; {
	case p.Version != 1:
		return fmt.Errorf("version must be 1, not %d", p.Version)
	case !filepath.IsAbs(p.AgentBrowser.Path):
		return errors.New("agent_browser.path must be absolute")
	case p.StateDir != "" && !filepath.IsAbs(p.StateDir):
		return errors.New("state_dir must be absolute")
	case p.AgentBrowser.CDPPort < 1 || p.AgentBrowser.CDPPort > 65535:
		return errors.New("agent_browser.cdp_port must lie between 1 and 65535")
	case l.MaxTimeoutSec < 1 || l.MaxTimeoutSec > 120:
		return errors.New("limits.max_timeout_sec must lie between 1 and 120")
	case l.TimeoutSec < 1 || l.TimeoutSec > l.MaxTimeoutSec:
		return errors.New("limits.timeout_sec must lie between 1 and limits.max_timeout_sec")
	case l.OutputBytes < 1<<10 || l.OutputBytes > 4<<20:
		return errors.New("limits.output_bytes must lie between 1024 and 4194304")
	case l.MaxSessions < 1 || l.MaxSessions > 64:
		return errors.New("limits.max_sessions must lie between 1 and 64")
	case p.Screenshot.MaxImageBytes < 0 || p.Screenshot.MaxImageBytes > 16<<20:
		return errors.New("screenshot.max_image_bytes must lie between 0 and 16777216")
	}
	for _, dir := range filepath.SplitList(p.AgentBrowser.SearchPath) {
		if !filepath.IsAbs(dir) {
			return errors.New("agent_browser.search_path must hold absolute directories only")
		}
	}
	return p.validateLists()
}

func (p *Policy) validateLists() error {
	for i, c := range p.Commands {
		if len(rowsOf(c)) == 0 {
			return fmt.Errorf("commands[%d]: no subcommand %q in the grammar", i, c)
		}
		if slices.Contains(p.Commands[:i], c) {
			return fmt.Errorf("commands[%d]: %q is given twice", i, c)
		}
	}
	for i, s := range p.Open.AllowSchemes {
		if s != "http" && s != "https" {
			return fmt.Errorf("open.allow_schemes[%d]: only http and https can be allowed", i)
		}
	}
	for key, hosts := range map[string][]string{"open.allow_hosts": p.Open.AllowHosts, "open.allow_host_suffixes": p.Open.AllowHostSuffixes} {
		for i, h := range hosts {
			for _, label := range strings.Split(h, ".") {
				if !hostLabel.MatchString(label) {
					return fmt.Errorf("%s[%d]: %q is not a lower-case host name (no dot in front, no wildcard, no port)", key, i, h)
				}
			}
		}
	}
	return nil
}
