// Package lock holds what resolving a profile found in its base: as a file that pins it, and as what answers for the base, from
// its tree or from that file.
package lock

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/build/strip"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/rawname"
)

// Name is the name of a lock file; it lies beside the profile.
const Name = "slim.lock"

// Version is that of the file's format.
const Version = 2

// File pins a profile to one base: with it a build reads no base layer, and always gives the same image.
type File struct {
	Version int     `json:"version"`
	Profile Profile `json:"profile"`
	Base    Base    `json:"base"`
	Payload Payload `json:"payload"`
	// Platforms has one entry a platform, by its name: linux/amd64.
	Platforms map[string]*Platform `json:"platforms"`
}

// Profile names the profile that was locked. Digest covers the effective profile.
type Profile struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
}

// Base is the base as the profile or --base names it, and the digest it had.
type Base struct {
	Reference string  `json:"reference"`
	Digest    v1.Hash `json:"digest"`
}

// Payload pins agent-browser.
type Payload struct {
	Version   string `json:"version"`
	Integrity string `json:"integrity"`
}

// Platform is what resolving found in one platform's base.
type Platform struct {
	Manifest v1.Hash `json:"manifest"`
	Line     string  `json:"line"`
	// Removals are the paths that the profile's removals came to.
	Removals []string `json:"removals"`
	// Env are the variables of the base that go.
	Env       []string  `json:"env,omitempty"`
	Footprint Footprint `json:"footprint"`
	// Layers are those that take the place of the base's, lowest first.
	Layers []strip.Pin `json:"layers,omitempty"`
	// Ledger is the ledger of what of the base they hold.
	Ledger *strip.Pin `json:"ledger,omitempty"`
}

// Footprint is the part of the base index that resolving looked at.
type Footprint struct {
	// Entries were there: the removed paths, and each directory above what is laid or removed.
	Entries []image.Entry `json:"entries"`
	// Absent were looked for and weren't there.
	Absent []string `json:"absent,omitempty"`
	// Globs has what each pattern matched.
	Globs map[string][]string `json:"globs,omitempty"`
	// Below has what lies below each owned directory.
	Below map[string][]string `json:"below,omitempty"`
	// Privileged are the files with setuid, setgid or file capabilities.
	Privileged []string `json:"privileged,omitempty"`
	// Machines has the ELF machine of each program that the image needs.
	Machines map[string]uint16 `json:"machines,omitempty"`
	// Interpreters has what the first line of each script that the image needs starts it with.
	Interpreters map[string][]string `json:"interpreters,omitempty"`
	// Servers are the MCP servers in the configuration of the base's hub.
	Servers []string `json:"mcpServers,omitempty"`
	// Links has each path that a symlink among its parents leads elsewhere.
	Links map[string]string `json:"links,omitempty"`
}

// NewFootprint returns one of which nothing is known.
func NewFootprint() Footprint {
	return Footprint{
		Globs: map[string][]string{}, Below: map[string][]string{}, Links: map[string]string{},
		Machines: map[string]uint16{}, Interpreters: map[string][]string{},
	}
}

// maxLock bounds what a lock file may make us read.
const maxLock = 64 << 20

// Read reads a lock file. A file that isn't there gives an error for which errors.Is(err, fs.ErrNotExist) holds.
func Read(file string) (*File, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxLock+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxLock {
		return nil, fmt.Errorf("%s: larger than %d bytes", file, maxLock)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var l File
	if err := dec.Decode(&l); err != nil {
		return nil, fmt.Errorf("%s:%s: %w; write it anew with `slimctl lock`", file, position(data, err, dec.InputOffset()), err)
	}
	if l.Version != Version {
		return nil, fmt.Errorf("%s: lock version %d, this slimctl reads %d; write it anew with `slimctl lock`", file, l.Version, Version)
	}
	for platform, p := range l.Platforms {
		if p == nil {
			return nil, fmt.Errorf("%s: platform %s is empty; write it anew with `slimctl lock`", file, platform)
		}
	}
	return rawname.Unquoted(&l), nil
}

// position gives the line and column of a JSON error.
func position(data []byte, err error, offset int64) string {
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &typ):
		offset = typ.Offset
	}
	before := data[:min(int(offset), len(data))]
	line := 1 + bytes.Count(before, []byte("\n"))
	return fmt.Sprintf("%d:%d", line, len(before)-bytes.LastIndexByte(before, '\n'))
}

// Write writes the lock to file, whole or not at all.
func (l *File) Write(file string) error {
	return image.WriteFile(file, 0o644, func(w io.Writer) error {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(rawname.Quoted(l)) // Read undoes it
	})
}

// Matches tells whether the lock is one of p on the base named reference for the platforms; the error says what differs.
func (l *File) Matches(p *profile.Profile, reference string, platforms []v1.Platform) error {
	switch {
	case l.Profile.Name != p.Name:
		return fmt.Errorf("it is for the profile %s, not %s", l.Profile.Name, p.Name)
	case l.Profile.Digest != p.Digest():
		return fmt.Errorf("profile %s or --set changed", p.Name)
	case l.Base.Reference != reference:
		return fmt.Errorf("it is for the base %s, not %s", l.Base.Reference, reference)
	case l.Payload.Version != p.Payload.AgentBrowser.Version || l.Payload.Integrity != p.Payload.AgentBrowser.Integrity:
		return fmt.Errorf("it is for agent-browser %s, not %s", l.Payload.Version, p.Payload.AgentBrowser.Version)
	}
	for _, want := range platforms {
		if l.Platforms[want.String()] == nil {
			return fmt.Errorf("it has no platform %s", want)
		}
	}
	return nil
}
