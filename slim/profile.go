package slim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/slimctl/slimctl/assets"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/profiles"
	"github.com/slimctl/slimctl/server/egress"
	"github.com/slimctl/slimctl/server/gate"
	"github.com/slimctl/slimctl/server/hub"
	"github.com/slimctl/slimctl/server/hub/guard"
	"github.com/slimctl/slimctl/server/policy"
)

// managedAsset is the Chromium policy that goes with the image's own policy file.
const managedAsset = "chromium/managed-policy.json"

// maxConfig is the size in bytes beyond which browser-shell reads no configuration file.
const maxConfig = 1 << 20

// configReaders holds, by the path in the image, the code that reads a laid file at run time.
var configReaders = map[string]func([]byte) error{
	policy.DefaultPath:              func(text []byte) error { _, err := policy.Parse(text); return err },
	guard.DefaultPath:               func(text []byte) error { _, err := guard.Parse(text); return err },
	hub.DefaultConfig + ".template": func(text []byte) error { _, err := hub.ParseConfig(text); return err },
}

// Profiles lists the built-in profiles.
func Profiles() ([]profile.Summary, error) { return profile.Loader{Builtin: profiles.FS}.List() }

// LoadProfile loads a profile, a built-in one by its name or a file, with settings over it (KEY.KEY=VALUE), and completes and
// checks the configuration files that it lays. Naming a profile that isn't there is a UsageError.
func LoadProfile(nameOrFile string, set []string) (*profile.Profile, error) {
	p, err := profile.Loader{Builtin: profiles.FS, Set: set}.Load(nameOrFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, usage(err)
	}
	if err == nil {
		err = completeConfigs(p, nameOrFile)
	}
	return p, err
}

// configs completes and checks the configuration files that a profile lays. named is the profile as the user named it.
type configs struct {
	*profile.Profile
	named string
	errs  profile.Errors
}

// completeConfigs checks every configuration file that the profile lays with the code that reads it in the image, and has
// the tool's policy and Chromium's policy say the same: policy.allowHosts goes into the first, the second is made from it.
func completeConfigs(p *profile.Profile, named string) error {
	c := &configs{Profile: p, named: named}
	for i := range p.Overlays {
		for j := range p.Overlays[i].Files {
			c.checkFile(&p.Overlays[i].Files[j])
		}
	}
	c.checkEnv()
	if len(c.errs) == 0 {
		c.fitChromium(c.allowHosts())
	}
	if len(c.errs) > 0 {
		return c.errs
	}
	return nil
}

func (c *configs) fail(at profile.Position, path, msg, hint string) {
	c.errs = append(c.errs, &profile.Error{Position: at, Path: path, Msg: msg, Hint: hint})
}

// failFile reports what a reader said of a file: at the place in the file that the profile names, or at the profile's line
// for a content that is written there.
func (c *configs) failFile(f *profile.File, err error) {
	msg := err.Error()
	if f.Source == "" || strings.HasPrefix(f.Source, "asset:") {
		c.fail(f.Position, f.Path, msg, "")
		return
	}
	at := profile.Position{File: filepath.Join(filepath.Dir(c.named), filepath.FromSlash(f.Written))}
	if place, rest, ok := strings.Cut(msg, ": "); ok {
		if n, _ := fmt.Sscanf(place, "%d:%d", &at.Line, &at.Column); n == 2 {
			msg = rest
		}
	}
	c.fail(at, "", msg, "")
}

// checkFile reads a file that a profile lays as the program in the image will read it, and notes what is wrong with it.
func (c *configs) checkFile(f *profile.File) {
	if name, ok := strings.CutPrefix(f.Source, "asset:"); ok {
		if info, err := fs.Stat(assets.FS, name); err != nil || info.IsDir() {
			c.fail(f.Position, "source", fmt.Sprintf("slimctl has no asset %q", name), "`slimctl profile show l0` shows the assets in use")
			return
		}
	}
	read := configReaders[f.Path]
	if read == nil {
		return
	}
	text, err := readConfig(f)
	if err == nil {
		err = read(text)
	}
	if err != nil {
		c.failFile(f, err)
	}
}

// readConfig returns the content of a laid file.
func readConfig(f *profile.File) ([]byte, error) {
	if f.Content != nil {
		return []byte(*f.Content), nil
	}
	var in fs.File
	var err error
	if name, ok := strings.CutPrefix(f.Source, "asset:"); ok {
		in, err = assets.FS.Open(name)
	} else if f.Source != "" {
		in, err = os.Open(f.Source)
	} else {
		return nil, errors.New("must be a file, not a link or a directory")
	}
	if err != nil {
		return nil, err
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, maxConfig+1))
	if err == nil && len(text) > maxConfig {
		err = fmt.Errorf("is larger than %d bytes", maxConfig)
	}
	return text, err
}

// CheckGateEnv checks the variables of an image's environment that decide who may come in. A key is usually given to the
// container only, so that one that is missing here is no fault.
func CheckGateEnv(env map[string]string) error {
	_, err := gate.FromEnv(func(name string) string {
		if name == "SANDBOX_API_KEY" && env[name] == "" {
			return strings.Repeat("k", 64)
		}
		return env[name]
	})
	return err
}

// checkEnv checks the variables of config.env that the image's entry reads.
func (c *configs) checkEnv() {
	if err := CheckGateEnv(c.Config.Env); err != nil {
		c.fail(profile.Position{File: c.named}, "config.env", strings.ReplaceAll(err.Error(), "\n", "; "), "")
	}
}

// laid returns the files that the profile lays at a path: several with conditions that exclude each other.
func (c *configs) laid(path string) (files []*profile.File) {
	for i := range c.Overlays {
		for j := range c.Overlays[i].Files {
			if f := &c.Overlays[i].Files[j]; f.Path == path {
				files = append(files, f)
			}
		}
	}
	return files
}

// allowHosts writes policy.allowHosts into the policy files that the profile lays, and returns the policies.
func (c *configs) allowHosts() (policies []*policy.Policy) {
	files := c.laid(policy.DefaultPath)
	if len(files) == 0 && len(c.Policy.AllowHosts) > 0 {
		c.fail(profile.Position{File: c.named}, "policy.allowHosts", "no overlay lays "+policy.DefaultPath, "extend l0, which does")
	}
	for _, f := range files {
		text, err := readConfig(f)
		if err != nil {
			c.failFile(f, err)
			continue
		}
		p, err := policy.Parse(text)
		if err == nil && len(c.Policy.AllowHosts) > 0 {
			p.Open.AllowHosts = c.Policy.AllowHosts
			if text, err = json.MarshalIndent(p, "", "  "); err == nil {
				p, err = policy.Parse(text)
			}
			replaceContent(f, append(text, '\n'))
		}
		if err != nil {
			c.failFile(f, err)
			continue
		}
		policies = append(policies, p)
	}
	return policies
}

// ChromiumFits reports whether the Chromium policy that a built-in profile lays fits a policy of the tool: whether Chromium
// allows the same hosts, schemes and proxies.
func ChromiumFits(p *policy.Policy) (bool, error) {
	stock, err := fs.ReadFile(assets.FS, managedAsset)
	if err != nil {
		return false, err
	}
	fitting, err := egress.Managed(p)
	return bytes.Equal(stock, fitting), err
}

// fitChromium has the Chromium policy that slimctl makes fit the tool's: without that Chromium refuses a host that the tool
// allows, or asks the proxy for one that it doesn't. A file of the profile's own in its place stays as it is.
func (c *configs) fitChromium(policies []*policy.Policy) {
	stock, err := fs.ReadFile(assets.FS, managedAsset)
	if err != nil {
		c.fail(profile.Position{File: c.named}, "", err.Error(), "")
		return
	}
	var fitting []byte
	for _, p := range policies {
		text, err := egress.Managed(p)
		switch {
		case err != nil:
			c.fail(profile.Position{File: c.named}, "", err.Error(), "")
			return
		case fitting != nil && !bytes.Equal(text, fitting):
			c.fail(profile.Position{File: c.named}, "overlays", "it lays several "+policy.DefaultPath+" with other hosts, schemes or proxies",
				"allow the same in each: one Chromium policy must fit them all")
			return
		}
		fitting = text
	}
	if fitting == nil || bytes.Equal(stock, fitting) {
		return
	}
	for i := range c.Overlays {
		for j := range c.Overlays[i].Files {
			if f := &c.Overlays[i].Files[j]; f.Source == "asset:"+managedAsset {
				replaceContent(f, fitting)
			}
		}
	}
}

func replaceContent(f *profile.File, text []byte) {
	content := string(text)
	f.Source, f.Written, f.Content = "", "", &content
}
