package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/report"
	"github.com/slimctl/slimctl/internal/rawname"
	"github.com/slimctl/slimctl/slim"
)

// story is what `slimctl why --format json` prints for one platform.
type story struct {
	Platform string `json:"platform"`
	*inspect.Why
	Profile []slim.ProfileLine `json:"profile"`
}

func (a *app) why() *cobra.Command {
	var f imageFlags
	var nameOrFile, format string
	var set []string
	cmd := &cobra.Command{
		Use:   "why IMAGE PATH",
		Short: "Explain where a path comes from and what keeps or removes it",
		Long: `Why prints which layer brought a path, which package or overlay it belongs to, and the line of the
profile that keeps or removes it. Use it for a path that verify, plan or diff names.`,
		Example: `  slimctl why oci:out /usr/bin/sudo
  slimctl why --profile l1 standin:B /usr/local/code-server-4.104.0`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usage(fmt.Errorf("%s takes two arguments, the image and a path in it, and got %d", cmd.CommandPath(), len(args)))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format, []string{report.Text, report.JSON}); err != nil {
				return err
			}
			p, err := slim.LoadProfile(nameOrFile, set)
			if err != nil {
				return err
			}
			opened, err := a.inspectImage(cmd.Context(), f, args[0])
			if err != nil {
				return err
			}
			var stories []story
			known := false
			for _, img := range opened.Images {
				s := story{img.Surface.Platform, img.Why(args[1]), nil}
				s.Profile = slim.About(p, s.Path)
				stories = append(stories, s)
				known = known || len(s.Steps) > 0 || len(s.Unread) > 0
			}
			if !known {
				return fmt.Errorf("%s: no layer of %s names it: %w", stories[0].Path, args[0], image.ErrNotFound)
			}
			if format == report.JSON {
				enc := json.NewEncoder(a.stdout)
				enc.SetIndent("", "  ")
				return enc.Encode(rawname.Quoted(stories))
			}
			return printStories(a.stdout, stories)
		},
	}
	f.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&nameOrFile, "profile", "l0", "profile: a built-in name, or a file")
	addSetFlags(flags, &set)
	flags.StringVar(&format, "format", report.Text, "text or json")
	return cmd
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
	line := func(format string, args ...any) { b.WriteString(printable(fmt.Sprintf(format, args...)) + "\n") }
	line("%s: %s", s.Platform, s.Path)
	if s.Asked != s.Path {
		line("  asked for as %s", s.Asked)
	}
	switch {
	case s.Entry == nil:
		line("  is not in the image")
	case s.Target != "":
		line("  is %s, which leads to %s", describe(*s.Entry), s.Target)
	default:
		line("  is %s", describe(*s.Entry))
	}
	for _, step := range s.Steps {
		words := step.Does + " it"
		if step.Entry != nil {
			words += ": " + describe(*step.Entry)
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
	if len(s.Profile) == 0 {
		line("  the profile doesn't name it")
	}
}

// describe words an entry: type, mode, owner and size.
func describe(e tree.Entry) string {
	words := fmt.Sprintf("a %s, %04o, owner %d:%d", e.Type, e.Mode, e.UID, e.GID)
	switch e.Type {
	case image.TypeFile:
		words += ", " + humanize.Bytes(uint64(max(0, e.Size)))
	case image.TypeSymlink, image.TypeLink:
		words += ", to " + e.Link
	}
	return words
}
