package slim

import (
	"bufio"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/assets"
	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/build/resolve"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/expect"
)

// expectRecipe says what the image of a recipe has to hold: exactly what the recipe lays, removes and sets. The annotations
// are those that the build writes to each manifest.
func expectRecipe(p *profile.Profile, r *build.Recipe, annotations map[string]string) (*expect.Expect, error) {
	e := expectProfile(p, profile.Line(r.Base.Line), r.Platform)
	e.Config.Unset = r.Change().UnsetEnv
	for _, s := range r.Removals() {
		e.Removed = append(e.Removed, expect.Removed{Glob: escapeGlob(s.Path), Why: s.Why, Source: s.Source})
	}
	layers, err := r.Layers()
	if err != nil {
		return nil, err
	}
	for _, l := range layers {
		if l.Name == build.RemoveLayer {
			e.Base.Above = append(e.Base.Above, "")
			continue
		}
		e.Base.Above = append(e.Base.Above, l.Name)
		for _, f := range l.Files {
			if l.Parents[f.Path] {
				continue
			}
			if err := expectFile(e, p, l.Name, f, f.Path); err != nil {
				return nil, err
			}
		}
	}
	config, err := r.Base.Image.ConfigFile()
	if err != nil {
		return nil, err
	}
	for _, d := range config.RootFS.DiffIDs {
		e.Base.Layers = append(e.Base.Layers, d.String())
	}
	manifest, err := r.Base.Image.Manifest()
	if err != nil {
		return nil, err
	}
	for _, l := range manifest.Layers {
		e.Base.Manifest = append(e.Base.Manifest, expect.Descriptor{
			MediaType: image.OCILayerType(l.MediaType), Digest: l.Digest.String(), Size: l.Size, Annotations: image.KeptAnnotations(l.Annotations),
		})
	}
	if e.Base.Config, err = r.Config(); err != nil {
		return nil, err
	}
	e.Base.Dirs = map[string]expect.File{}
	for at, d := range r.Dirs {
		e.Base.Dirs[at] = expect.File{Path: at, Type: string(d.Type), Mode: d.Mode, UID: d.UID, GID: d.GID}
	}
	e.Base.Name, e.Base.Digest = annotations[image.AnnotationBaseName], annotations[image.AnnotationBaseDigest]
	return e, nil
}

// expectImage says what img has to hold by a profile whose base isn't known: what the profile removes on any line has to be
// gone. unchecked names what can't be said without the base.
func expectImage(p *profile.Profile, img *inspect.Image, own []build.Lay) (e *expect.Expect, unchecked []string, err error) {
	platform := profilePlatform(img.Platform)
	e = expectProfile(p, "", platform)
	lays, unsure, err := resolve.Laid(p, platform, assets.FS, own)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range unsure {
		unchecked = append(unchecked, fmt.Sprintf("%s: whether %s has to be there: that depends on the base; name it with --base", platform, name))
	}
	for _, lay := range lays {
		for _, f := range lay.Files {
			written := f.Path
			if f.Path, err = img.Files.Resolve(f.Path); err != nil {
				f.Path = written // it is not there, then
			}
			if err := expectFile(e, p, lay.Name, f, written); err != nil {
				return nil, nil, err
			}
		}
	}
	return e, unchecked, nil
}

// profilePlatform is a platform as profiles write it, without the variant that goes without saying.
func profilePlatform(p v1.Platform) v1.Platform {
	if p.Architecture == "arm64" && p.Variant == "v8" {
		p.Variant = ""
	}
	return p
}

// expectProfile says what a profile tells by itself. line is empty when the base's isn't known.
func expectProfile(p *profile.Profile, line profile.Line, platform v1.Platform) *expect.Expect {
	x, c := p.Expect, p.Config
	e := &expect.Expect{
		Profile: p.Name, Platform: platform.String(),
		Programs: x.Programs, Routes: x.Routes, MCPServers: x.MCPServers, Tools: x.Tools,
		Listeners: x.Listeners, Privileged: p.Privileged, Switches: x.Switches,
		Config: expect.Config{
			Entrypoint: c.Entrypoint, Cmd: c.Cmd, User: c.User, WorkingDir: c.WorkingDir, Env: c.Env,
			ExposedPorts: c.ExposedPorts, Labels: c.Labels,
		},
	}
	if c.Healthcheck != nil {
		e.Config.Healthcheck = c.Healthcheck.Test
	}
	for _, o := range p.Own {
		closed := expect.Closed{Glob: escapeGlob(o.Path) + "/**", Allow: []string{escapeGlob(o.Path)}, Why: o.Why, Source: position(o.Position)}
		for _, keep := range o.Keep {
			closed.Allow = append(closed.Allow, keep, keep+"/**")
			for _, dir := range image.Parents(keep) {
				if image.Within(dir, o.Path) {
					closed.Allow = append(closed.Allow, dir)
				}
			}
		}
		e.Closed = append(e.Closed, closed)
	}
	for _, list := range [][]profile.Removal{p.Remove, p.Strip} {
		for _, r := range list {
			can, always := resolve.CanHold(r.When, line, platform)
			if !can || line != "" && !always { // with a line there is a recipe, which knows
				continue
			}
			glob := r.Glob
			if glob == "" {
				glob = escapeGlob(r.Path)
			}
			e.Removed = append(e.Removed, expect.Removed{Glob: glob, Except: r.Except, Why: r.Why, Source: position(r.Position)})
		}
	}
	return e
}

// expectFile adds a laid file, which the profile has at the path written.
func expectFile(e *expect.Expect, p *profile.Profile, overlay string, f image.File, written string) error {
	out := expect.File{
		Path: f.Path, Type: string(f.Type), Mode: f.Mode, UID: f.UID, GID: f.GID, Link: f.Link, Overlay: overlay, Source: sourceOf(p, overlay, written),
	}
	if f.Type == image.TypeFile {
		if err := contentOf(f, &out); err != nil {
			return fmt.Errorf("overlay %s: %s: %w", overlay, f.Path, err)
		}
	}
	e.Files = append(e.Files, out)
	return nil
}

// contentOf reads a file for its digest, its size and, if it is an ELF program, its machine.
func contentOf(f image.File, out *expect.File) error {
	h := sha256.New()
	if f.Open != nil {
		r, err := f.Open()
		if err != nil {
			return err
		}
		in := bufio.NewReaderSize(r, 64<<10)
		head, _ := in.Peek(elfHeader) // of a shorter file what there is
		out.Machine = elfMachine(head)
		if out.Size, err = io.Copy(h, in); err != nil {
			return errors.Join(err, r.Close())
		}
		if err := r.Close(); err != nil {
			return err
		}
	}
	out.SHA256 = "sha256:" + hex.EncodeToString(h.Sum(nil))
	return nil
}

// elfHeader is how much of a file tells its machine: e_ident, e_type and e_machine (System V ABI, chapter 4), in bytes.
const elfHeader = 20

// elfMachine names the machine of a 64-bit little-endian ELF program; empty for anything else.
func elfMachine(head []byte) string {
	if len(head) < elfHeader || string(head[:4]) != elf.ELFMAG || elf.Class(head[elf.EI_CLASS]) != elf.ELFCLASS64 || elf.Data(head[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return ""
	}
	return elf.Machine(binary.LittleEndian.Uint16(head[18:])).String()
}

// sourceOf is the profile's line for a file of an overlay, or for the overlay; empty for what slimctl lays of itself.
func sourceOf(p *profile.Profile, overlay, written string) string {
	for _, o := range p.Overlays {
		if o.Name != overlay {
			continue
		}
		for _, f := range o.Files {
			if image.Clean(f.Path) == written {
				return position(f.Position)
			}
		}
		return position(o.Position)
	}
	return ""
}

func position(p profile.Position) string {
	if p.File == "" {
		return ""
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

var globMeta = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `{`, `\{`)

func escapeGlob(path string) string { return globMeta.Replace(path) }
