// Package lock reads and writes lock files, which pin what resolving a profile found in its base. A View answers
// questions about the base, from its tree or from a lock.
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

// Name is the default name of a lock file. It lies beside the profile.
const Name = "slim.lock"

// Version is the version of the file format.
const Version = 2

// File pins a profile to one base. With it, a build reads no base layer and always makes the same image.
type File struct {
	Version int     `json:"version"`
	Profile Profile `json:"profile"`
	Base    Base    `json:"base"`
	Payload Payload `json:"payload"`
	// Platforms has one entry per platform, by name: linux/amd64.
	Platforms map[string]*Platform `json:"platforms"`
}

// Profile names the profile that was locked. Digest covers the effective profile.
type Profile struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
}

// Base is the reference of the base, from the profile or --base, and the digest it had.
type Base struct {
	Reference string  `json:"reference"`
	Digest    v1.Hash `json:"digest"`
}

// Payload pins the agent-browser release.
type Payload struct {
	Version   string `json:"version"`
	Integrity string `json:"integrity"`
}

// Platform is the result of resolving for one platform.
type Platform struct {
	Manifest v1.Hash `json:"manifest"`
	Line     string  `json:"line"`
	// Removals are the paths in the base that the profile removes.
	Removals []string `json:"removals"`
	// Found maps each path that the image needs to where the base has it, if it isn't there.
	Found map[string]string `json:"found,omitempty"`
	// Env are the variables of the base that are unset.
	Env       []string  `json:"env,omitempty"`
	Footprint Footprint `json:"footprint"`
	// Layers are the layers that replace the base's, lowest first.
	Layers []strip.Pin `json:"layers,omitempty"`
	// Ledger is the ledger of these layers.
	Ledger *strip.Pin `json:"ledger,omitempty"`
}

// Footprint is the part of the base's index that resolving looked at.
type Footprint struct {
	// Entries are the paths that exist: the removed ones, and each directory above an overlay's or removed path.
	Entries []image.Entry `json:"entries"`
	// Absent are the paths that don't exist.
	Absent []string `json:"absent,omitempty"`
	// Globs maps each pattern to the paths that it matches.
	Globs map[string][]string `json:"globs,omitempty"`
	// Below maps each owned directory to the paths below it, relative to it.
	Below map[string][]string `json:"below,omitempty"`
	// Privileged are the files with setuid, setgid or file capabilities.
	Privileged []string `json:"privileged,omitempty"`
	// Machines maps each ELF program that the image needs to its machine.
	Machines map[string]uint16 `json:"machines,omitempty"`
	// Interpreters maps each script that the image needs to the words of its #! line.
	Interpreters map[string][]string `json:"interpreters,omitempty"`
	// Servers are the MCP servers in the configuration of the base's hub.
	Servers []string `json:"mcpServers,omitempty"`
	// Links maps each path with a symlink among its parents to its real path.
	Links map[string]string `json:"links,omitempty"`
}

// NewFootprint returns an empty footprint.
func NewFootprint() Footprint {
	return Footprint{
		Globs: map[string][]string{}, Below: map[string][]string{}, Links: map[string]string{},
		Machines: map[string]uint16{}, Interpreters: map[string][]string{},
	}
}

// maxLock limits the size of a lock file, in bytes.
const maxLock = 64 << 20

// Read reads a lock file. If it doesn't exist, errors.Is(err, fs.ErrNotExist) holds.
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
		return nil, fmt.Errorf("%s: larger than %d bytes; write it anew with `slimctl lock`", file, maxLock)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var l File
	if err := dec.Decode(&l); err != nil {
		return nil, fmt.Errorf("%s:%s: %w; write it anew with `slimctl lock`", file, position(data, err, dec.InputOffset()), err)
	}
	if rest := bytes.TrimLeft(data[dec.InputOffset():], " \t\r\n"); len(rest) > 0 {
		at := position(data, nil, int64(len(data)-len(rest)))
		return nil, fmt.Errorf("%s:%s: text after the lock's end; write it anew with `slimctl lock`", file, at)
	}
	if l.Version != Version {
		return nil, fmt.Errorf("%s: lock version %d, but this slimctl reads %d; write it anew with `slimctl lock`", file, l.Version, Version)
	}
	for platform, p := range l.Platforms {
		if p == nil {
			return nil, fmt.Errorf("%s: platform %s is empty; write it anew with `slimctl lock`", file, platform)
		}
	}
	return rawname.Unquoted(&l), nil
}

// position returns the line and column of a JSON error as LINE:COLUMN.
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

// Write writes the lock to file atomically.
func (l *File) Write(file string) error {
	return image.WriteFile(file, 0o644, func(w io.Writer) error {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(rawname.Quoted(l)) // Read undoes it
	})
}

// Matches returns an error unless the lock is for p, on the base reference, with all platforms. The error names the
// first difference.
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
