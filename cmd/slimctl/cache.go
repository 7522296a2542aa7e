package main

import (
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/inspect/report"
	"github.com/slimctl/slimctl/internal/cache"
)

// unusedAfter is the default age of the last use after which an entry of the cache is pruned.
const unusedAfter = 30 * 24 * time.Hour

func (a *app) cache() *cobra.Command {
	return commandGroup("cache", "Show and prune slimctl's cache directory", a.cacheUsage(), a.cachePrune())
}

func (a *app) cacheUsage() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "du",
		Short: "Print what the cache holds, with sizes",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			rooms, err := cache.Usage(a.cacheDir)
			if err != nil {
				return err
			}
			if format == report.JSON {
				return a.printJSON(map[string]any{"rooms": rooms})
			}
			t := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
			fmt.Fprintln(t, "ROOM\tENTRIES\tSIZE\tLAST USED\tHOLDS")
			for _, r := range rooms {
				used := "-"
				if !r.Used.IsZero() {
					used = r.Used.UTC().Format(time.DateOnly)
				}
				fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\n", r.Name, r.Entries, report.Bytes(r.Bytes), used, r.What)
			}
			entries, bytes := sumRooms(rooms)
			fmt.Fprintf(t, "total\t%d\t%s\t\t%s\n", entries, report.Bytes(bytes), printable(a.cacheDir))
			return t.Flush()
		},
	}
	addFormat(cmd.Flags(), &format)
	return cmd
}

func (a *app) cachePrune() *cobra.Command {
	var format string
	var all bool
	var o cache.Options
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove what no build has used for a while",
		Long: `Prune removes entries of the cache that nothing read or wrote for 30 days, or
for the time of --older-than. A later build makes or fetches them again. What
another slimctl holds locked stays, and so does any file that slimctl didn't put
into the directory.`,
		Example: `  slimctl cache prune --dry-run
  slimctl cache prune --older-than 168h`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case all && cmd.Flags().Changed("older-than"):
				return usageError(errors.New("--all and --older-than: give one of them"))
			case all:
				o.Unused = 0
			case o.Unused <= 0:
				return usageError(fmt.Errorf("--older-than %s: want a time such as 168h; --all removes everything", o.Unused))
			}
			rooms, err := cache.Prune(a.cacheDir, o)
			if err != nil {
				return err
			}
			if format == report.JSON {
				return a.printJSON(map[string]any{"rooms": rooms})
			}
			done := "removed"
			if o.DryRun {
				done = "would remove"
			}
			for _, r := range rooms {
				if r.Entries > 0 {
					fmt.Fprintf(a.stderr, "%s: %s %d of its entries, %s\n", r.Name, done, r.Entries, report.Bytes(r.Bytes))
				}
				for why, n := range r.Kept {
					fmt.Fprintf(a.stderr, "%s: kept %d of its entries: %s\n", r.Name, n, printable(why))
				}
			}
			_, bytes := sumRooms(rooms)
			_, err = fmt.Fprintf(a.stdout, "%s %s\n", done, report.Bytes(bytes))
			return err
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&o.Unused, "older-than", unusedAfter, "remove what was not used for this time")
	flags.BoolVar(&all, "all", false, "remove everything that is not in use")
	flags.BoolVar(&o.DryRun, "dry-run", false, "print what would be removed, and remove nothing")
	addFormat(flags, &format)
	return cmd
}

func sumRooms(rooms []cache.Room) (entries int, bytes int64) {
	for _, r := range rooms {
		entries, bytes = entries+r.Entries, bytes+r.Bytes
	}
	return entries, bytes
}
