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
	"github.com/slimctl/slimctl/server/front"
	"github.com/slimctl/slimctl/server/gate"
	"github.com/slimctl/slimctl/server/policy"
)

// managedAsset is the Chromium policy made from the image's own policy file.
const managedAsset = "chromium/managed-policy.json"

// maxConfig is the largest configuration file that browser-shell reads, in bytes.
const maxConfig = 1 << 20

// configReaders maps paths in the image to the code that reads the overlay's file at run time.
var configReaders = map[string]func([]byte) error{
	policy.DefaultPath:                func(text []byte) error { _, err := policy.Parse(text); return err },
	front.DefaultConfig + ".template": front.ParseConfig,
}

// Profiles returns the built-in profiles.
func Profiles() ([]profile.Summary, error) { return profile.Loader{Builtin: profiles.FS}.List() }

// LoadProfile loads a built-in profile by its name, or a profile file, with settings over it (KEY.KEY=VALUE). It
// completes and checks the configuration files in its overlays. A name that doesn't exist is a UsageError.
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

// configs checks the configuration files in a profile's overlays. named is the profile's name as given by the user.
type configs struct {
	*profile.Profile
	named string
	errs  profile.Errors
}

// completeConfigs checks every configuration file with the code that reads it in the image, and makes the tool's policy
// and Chromium's policy agree: it writes policy.allowHosts to the first and makes the second from it.
func completeConfigs(p *profile.Profile, named string) error {
	c := &configs{Profile: p, named: named}
	for i := range p.Overlays {
		for j := range p.Overlays[i].Files {
			c.checkFile(&p.Overlays[i].Files[j])
		}
	}
	c.checkEnv()
	if len(c.errs) == 0 {
		c.fitChromium(c.setAllowHosts())
	}
	if len(c.errs) > 0 {
		return c.errs
	}
	return nil
}

func (c *configs) fail(at profile.Position, path, msg, hint string) {
	c.errs = append(c.errs, &profile.Error{Position: at, Path: path, Msg: msg, Hint: hint})
}

// failFile reports a reader's error about a file: at the place in the file, or at the profile's line if the profile
// holds the content.
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

// checkFile reads an overlay's file with the code of the program in the image, and reports errors.
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

// readConfig returns the content of an overlay's file.
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

// CheckGateEnv checks the variables of an image's environment that control access. A missing key is no error, since it
// is usually given to the container only.
func CheckGateEnv(env map[string]string) error {
	_, err := gate.FromEnv(func(name string) string {
		if name == "SANDBOX_API_KEY" && env[name] == "" {
			return strings.Repeat("k", 64)
		}
		return env[name]
	})
	return err
}

// checkEnv checks the variables of config.env that browser-shell init reads.
func (c *configs) checkEnv() {
	if err := CheckGateEnv(c.Config.Env); err != nil {
		c.fail(profile.Position{File: c.named}, "config.env", strings.ReplaceAll(err.Error(), "\n", "; "), "")
	}
}

// filesAt returns the overlay files at a path. There are several if their conditions exclude each other.
func (c *configs) filesAt(path string) (files []*profile.File) {
	for i := range c.Overlays {
		for j := range c.Overlays[i].Files {
			if f := &c.Overlays[i].Files[j]; f.Path == path {
				files = append(files, f)
			}
		}
	}
	return files
}

// setAllowHosts writes policy.allowHosts to the policy files in the overlays, and returns the policies.
func (c *configs) setAllowHosts() (policies []*policy.Policy) {
	files := c.filesAt(policy.DefaultPath)
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

// ChromiumFits reports whether the Chromium policy in the built-in profiles fits a tool's policy: whether both allow
// the same hosts, schemes and proxies.
func ChromiumFits(p *policy.Policy) (bool, error) {
	stock, err := fs.ReadFile(assets.FS, managedAsset)
	if err != nil {
		return false, err
	}
	fitting, err := egress.Managed(p)
	return bytes.Equal(stock, fitting), err
}

// fitChromium makes slimctl's Chromium policy fit the tool's. Otherwise Chromium would refuse a host that the tool
// allows, or ask the proxy for one that it doesn't. It leaves a policy file of the profile's own unchanged.
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
