package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/inspect/report"
	"github.com/slimctl/slimctl/internal/rawname"
	"github.com/slimctl/slimctl/slim"
)

func (a *app) plan() *cobra.Command {
	f := &recipeFlags{}
	var format, explain string
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Print what a build would add, remove and set, and why",
		Long: `Plan resolves the profile against the base as build does, and prints the steps instead of
taking them. Use it to see what a change of the profile does before you build.`,
		Example: `  slimctl plan --base standin:B
  slimctl plan --profile ./my.yaml --format json
  slimctl plan --profile l1 --explain /usr/bin/openbox`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := a.resolve(cmd.Context(), f)
			if err != nil {
				return err
			}
			if explain != "" {
				return a.explain(r, explain, format)
			}
			var plans []plan
			for _, recipe := range r.Recipes {
				plans = append(plans, newPlan(recipe))
			}
			if format == report.JSON {
				return a.printJSON(rawname.Quoted(plans))
			}
			for _, p := range plans {
				if err := p.print(a.stdout); err != nil {
					return err
				}
			}
			return nil
		},
	}
	f.addLock(cmd)
	addFormat(cmd.Flags(), &format)
	cmd.Flags().StringVar(&explain, "explain", "", "say why `PATH`, or a package, stays or goes; for a profile with keep")
	return cmd
}

// explain prints why a path or package stays or goes.
func (a *app) explain(r *slim.Resolved, what, format string) error {
	type explanation struct {
		Platform string      `json:"platform"`
		Asked    string      `json:"asked"`
		Stays    bool        `json:"stays"`
		Steps    []string    `json:"steps"` // from the path to the root that needs it, or to the rule that removes it
		Below    *slim.Below `json:"below,omitempty"`
	}
	if r.Profile.Keep == nil {
		return usageError(fmt.Errorf("--explain: profile %s keeps the base's layers; run `slimctl why IMAGE PATH` for a path", r.Profile.Name))
	}
	accounts, err := r.Explain(what)
	if err != nil {
		return fmt.Errorf("--explain: %w", err)
	}
	out := []explanation{}
	for _, a := range accounts {
		out = append(out, explanation{a.Platform, what, a.Rows[0].Stays != "", a.Steps(), a.Below})
	}
	if format == report.JSON {
		return a.printJSON(rawname.Quoted(out))
	}
	for _, e := range out {
		for _, s := range e.Steps {
			if _, err := fmt.Fprintf(a.stdout, "%s: %s\n", e.Platform, rawname.Line(s)); err != nil {
				return err
			}
		}
	}
	return nil
}

// plan is the printed form of a recipe.
type plan struct {
	Platform string         `json:"platform"`
	Profile  string         `json:"profile"`
	Base     build.Base     `json:"base"`
	Remove   []build.Remove `json:"remove"`
	// Keep lists the layers with the kept files of the base; empty if the image uses the base's own layers.
	Keep []planComponent    `json:"keep,omitempty"`
	Lay  []planOverlay      `json:"lay"`
	Set  build.ConfigChange `json:"set"`
	// New lists the removed paths that neither the profile nor the previous lock names.
	New []build.Gone `json:"new,omitempty"`
}

type planComponent struct {
	Name  string `json:"name"`
	Files int    `json:"files"`
	Bytes int64  `json:"bytes"`
}

type planOverlay struct {
	Name  string     `json:"name"`
	Why   string     `json:"why"`
	Bytes int64      `json:"bytes"`
	Files []planFile `json:"files"`
}

type planFile struct {
	Path string `json:"path"`
	Mode string `json:"mode"`
	Size int64  `json:"size,omitempty"`
	Link string `json:"link,omitempty"`
}

func newPlan(r *build.Recipe) plan {
	p := plan{
		Platform: r.Platform.String(), Profile: r.Profile, Base: r.Base, Set: r.Change,
		Remove: append([]build.Remove{}, r.Removals...), Lay: []planOverlay{}, New: r.New,
	}
	for _, c := range r.Stripped() {
		p.Keep = append(p.Keep, planComponent{c.Name, c.Files, c.Unpacked})
	}
	for _, s := range r.Overlays {
		o := planOverlay{Name: s.Name, Why: s.Why}
		for _, f := range s.Files {
			o.Bytes += f.Size
			o.Files = append(o.Files, planFile{Path: f.Path, Mode: fmt.Sprintf("%04o", f.Mode), Size: f.Size, Link: f.Link})
		}
		p.Lay = append(p.Lay, o)
	}
	return p
}

// maxListed is the number of files that the text prints for one overlay; --format json prints all.
const maxListed = 12

func (p plan) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "%s: profile %s on %s, line %s (%s)\n", p.Platform, p.Profile, p.Base.Reference, p.Base.Line, p.Base.Index)
	fmt.Fprintf(t, "\nremove %s\n", english.Plural(len(p.Remove), "path", ""))
	for _, r := range p.Remove {
		fmt.Fprintf(t, "  - %s\t%s\n", rawname.Line(r.Path), r.Why)
		for _, g := range r.With {
			fmt.Fprintf(t, "    %s\t%s\n", rawname.Line(g.Path), g.Why)
		}
	}
	for _, c := range p.Keep {
		fmt.Fprintf(t, "\nkeep %s: %s, %s\n", c.Name, english.Plural(c.Files, "file", ""), humanize.Bytes(uint64(c.Bytes)))
	}
	for _, o := range p.Lay {
		fmt.Fprintf(t, "\nlay %s: %s, %d bytes\t%s\n", o.Name, english.Plural(len(o.Files), "file", ""), o.Bytes, o.Why)
		for i, f := range o.Files {
			if i == maxListed {
				fmt.Fprintf(t, "  + … and %d more\n", len(o.Files)-maxListed)
				break
			}
			what := fmt.Sprintf("%s %d bytes", f.Mode, f.Size)
			if f.Link != "" {
				what = "-> " + f.Link
			}
			fmt.Fprintf(t, "  + %s\t%s\n", rawname.Line(f.Path), rawname.Line(what))
		}
	}
	fmt.Fprintln(t, "\nset")
	for _, line := range p.Set.Lines() {
		fmt.Fprintf(t, "  ~ %s\n", rawname.Line(line))
	}
	if len(p.New) > 0 {
		fmt.Fprintf(t, "\nnew upstream, removed: %d\n", len(p.New))
	}
	for _, g := range p.New {
		fmt.Fprintf(t, "  ! %s\t%s\n", rawname.Line(g.Path), g.Why)
	}
	fmt.Fprintln(t)
	return t.Flush()
}
