package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/build/ledger"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/report"
	"github.com/slimctl/slimctl/internal/rawname"
	"github.com/slimctl/slimctl/slim"
)

// story is the output of `slimctl why --format json` for one platform: the ledger's account, or else that of the
// layers.
type story struct {
	Platform string `json:"platform"`
	*inspect.Why
	Profile []slim.ProfileLine `json:"profile,omitempty"`
	Ledger  *slim.Account      `json:"ledger,omitempty"`
	// Build is the account of a build on this image as the base, for a profile with keep.
	Build *slim.Account `json:"build,omitempty"`
}

func (a *app) why() *cobra.Command {
	var f imageFlags
	var nameOrFile, format string
	var set []string
	cmd := &cobra.Command{
		Use:   "why IMAGE PATH",
		Short: "Explain where a path comes from and what keeps or removes it",
		Long: `Why prints which layer brought a path, and which package or overlay it belongs to. It also
prints the profile's line that keeps or removes the path. Use it for a path that verify,
plan or diff names.

For a small image, such as one of profile l1, it prints the row of the image's ledger. It
reads no layer then, and also knows the paths of the base that the image lacks.`,
		Example: `  slimctl why oci:out /usr/bin/sudo
  slimctl why --profile l1 standin:B /usr/local/code-server-4.104.0`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usageError(fmt.Errorf("%s takes two arguments, the image and a path in it, and got %d", cmd.CommandPath(), len(args)))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := slim.LoadProfile(nameOrFile, set)
			if err != nil {
				return err
			}
			access, err := a.access(f.registry, f.progress)
			if err != nil {
				return err
			}
			stories, err := tellStories(cmd.Context(), slim.InspectOptions{Access: access, Image: args[0], Platforms: f.platforms}, p, args[1])
			if err != nil {
				return err
			}
			if p.Keep != nil {
				addBuild(cmd.Context(), stories, slim.ResolveOptions{Access: access, Profile: nameOrFile, Set: set, Base: args[0], NoLock: true})
			}
			if format == report.JSON {
				return a.printJSON(rawname.Quoted(stories))
			}
			return printStories(a.stdout, stories)
		},
	}
	f.addTo(cmd)
	flags := cmd.Flags()
	addProfile(flags, &nameOrFile, &set)
	addFormat(flags, &format)
	return cmd
}

// tellStories returns the ledgers' accounts of path, or those of the layers if no ledger knows it.
func tellStories(ctx context.Context, o slim.InspectOptions, p *profile.Profile, path string) ([]story, error) {
	accounts, err := slim.AskLedger(ctx, o, path)
	if err != nil {
		return nil, err
	}
	var out []story
	for _, account := range accounts {
		out = append(out, story{Platform: account.Platform, Ledger: &account})
	}
	if len(out) > 0 {
		return out, nil
	}
	opened, err := slim.Inspect(ctx, o)
	if err != nil {
		return nil, err
	}
	known := false
	for _, img := range opened.Images {
		s := story{Platform: img.Surface.Platform, Why: img.Why(path)}
		var last *tree.Entry
		for _, step := range s.Steps {
			last = cmp.Or(step.Entry, last)
		}
		s.Profile = slim.About(p, s.Path, last)
		out = append(out, s)
		known = known || len(s.Steps) > 0 || len(s.Unread) > 0
	}
	if !known {
		return nil, fmt.Errorf("%s is in no layer of %s: %w", out[0].Path, o.Image, image.ErrNotFound)
	}
	return out, nil
}

// addBuild adds to each story the account of a build with the profile, if the image is a base.
func addBuild(ctx context.Context, stories []story, o slim.ResolveOptions) {
	for i, s := range stories {
		if s.Ledger != nil || s.Entry == nil {
			continue
		}
		o.Platforms = []string{s.Platform}
		var accounts []slim.Account
		r, err := slim.Resolve(ctx, o)
		if err == nil {
			accounts, err = r.Explain(s.Path)
		}
		if err != nil {
			o.Log("%s: what a build of profile %s makes of it isn't known: %v", s.Platform, o.Profile, err)
			continue
		}
		stories[i].Build = &accounts[0]
	}
}

func printStories(w io.Writer, stories []story) error {
	var b strings.Builder
	for i, s := range stories {
		if i > 0 {
			b.WriteString("\n")
		}
		s.print(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (s story) print(b *strings.Builder) {
	line := func(format string, args ...any) { b.WriteString(rawname.Line(fmt.Sprintf(format, args...)) + "\n") }
	if a := s.Ledger; a != nil {
		row := a.Rows[0]
		line("%s: %s", s.Platform, row.Path)
		switch {
		case row.Stays != "":
			line("  is in the image")
		case row.Goes == ledger.Replaced:
			line("  is in the image, and not the base's")
		default:
			line("  is not in the image")
		}
		for _, r := range a.Rows {
			line("    %s", r)
		}
		if row.Package != "" {
			line("  belongs to the package %s", row.Package)
		}
		if row.Component != "" && row.Stays != "" {
			line("  lies in the layer %s", row.Component)
		}
		if row.Edited != "" {
			line("  was edited: %s in the base, %s in the image", row.Digest, row.Edited)
		}
		line("  says the ledger %s, which the image's publisher wrote; slimctl verify checks it", a.Ledger)
		return
	}
	line("%s: %s", s.Platform, s.Path)
	if s.Asked != s.Path {
		line("  asked for as %s", s.Asked)
	}
	switch {
	case s.Entry == nil:
		line("  is not in the image")
	case s.Target != "":
		line("  is %s, which leads to %s", describeEntry(*s.Entry), s.Target)
	default:
		line("  is %s", describeEntry(*s.Entry))
	}
	for _, step := range s.Steps {
		words := step.Does + " it"
		if step.Entry != nil {
			words += ": " + describeEntry(*step.Entry)
		} else if step.By != "" {
			words += ", with " + step.By
		}
		line("  layer %d %s", step.Layer, words)
		line("    %s %s", step.Digest, step.CreatedBy)
	}
	for _, digest := range s.Unread {
		line("  layer %s was not read", digest)
	}
	if p := s.Package; p != nil {
		line("  belongs to the %s package %s %s", p.Kind, p.Name, p.Version)
	} else if len(s.Steps) > 0 {
		line("  belongs to no package")
	}
	for _, l := range s.Profile {
		words := fmt.Sprintf("%s %s %s", l.Source, l.Does, l.What)
		if l.When != "" {
			words += " (" + l.When + ")"
		}
		line("  %s", words)
		line("    %s", l.Why)
	}
	if s.Build != nil {
		line("  in an image of the profile:")
		for _, step := range s.Build.Steps() {
			line("    %s", step)
		}
	} else if len(s.Profile) == 0 {
		line("  the profile doesn't name it")
	}
}

// describeEntry returns the type, mode, owner and size of an entry in words.
func describeEntry(e tree.Entry) string {
	words := fmt.Sprintf("a %s, %04o, owner %d:%d", e.Type, e.Mode, e.UID, e.GID)
	switch e.Type {
	case image.TypeFile:
		words += ", " + humanize.Bytes(uint64(max(0, e.Size)))
	case image.TypeSymlink, image.TypeLink:
		words += ", to " + e.Link
	}
	return words
}
