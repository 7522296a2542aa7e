package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/slimctl/slimctl/internal/rawname"
	"github.com/slimctl/slimctl/server/audit"
)

// errBroken reports a broken chain; the details are already on stdout.
var errBroken = errors.New("the audit log is not as it was written")

func runAudit(_ context.Context, args []string, std stdio) error {
	if len(args) == 0 || args[0] != "verify" {
		fmt.Fprintln(std.err, "usage: browser-shell audit verify FILE... [--anchor SEQ:HASH] [--json]")
		if len(args) == 1 && (args[0] == "-h" || args[0] == "--help") {
			return nil
		}
		return errUsage
	}
	flags := flag.NewFlagSet("audit verify", flag.ContinueOnError)
	anchor := flags.String("anchor", "", "`SEQ:HASH` of a line that must be in the log, or just before it")
	asJSON := flags.Bool("json", false, "print a JSON object")
	files, err := parseMixed(flags, args[1:], std)
	if err != nil {
		return err
	}
	logs := groupLogs(files)
	if whole, err := audit.Verify(*anchor, files...); err == nil && whole.OK { // files that a collector renamed may still be one log
		logs = [][]string{files}
	}
	if len(logs) > 1 && *anchor != "" {
		fmt.Fprintf(std.err, "browser-shell audit verify: --anchor is for one log, and the files are of %d; verify one at a time\n", len(logs))
		return errUsage
	}
	ok := true
	for _, files := range logs {
		report, err := audit.Verify(*anchor, files...)
		if err != nil {
			return err
		}
		ok = ok && report.OK
		text := describeReport(report)
		if len(logs) > 1 {
			text = rawname.Shown(files[0]) + ": " + text
		}
		if *asJSON {
			err = encodeReport(std.out, files[0], report)
		} else {
			_, err = fmt.Fprintln(std.out, text)
		}
		if err != nil {
			return err
		}
	}
	if !ok {
		return errBroken
	}
	return nil
}

// encodeReport writes a report as a line of JSON without terminal control characters.
func encodeReport(w io.Writer, log string, r audit.Report) error {
	data, err := json.Marshal(struct {
		Log string `json:"log"`
		audit.Report
	}{log, r})
	if err != nil {
		return err
	}
	_, err = w.Write(append(rawname.Printable(data), '\n'))
	return err
}

// groupLogs groups files by log: those of a directory whose names differ in the number that rotation appends.
func groupLogs(files []string) (logs [][]string) {
	at := map[string]int{}
	for _, f := range files {
		name := f
		if _, err := strconv.ParseUint(strings.TrimPrefix(filepath.Ext(f), "."), 10, 64); err == nil {
			name = strings.TrimSuffix(f, filepath.Ext(f))
		}
		if _, known := at[name]; !known {
			at[name], logs = len(logs), append(logs, nil)
		}
		logs[at[name]] = append(logs[at[name]], f)
	}
	return logs
}

// parseMixed parses flags before, between and after files. It requires at least one file.
func parseMixed(flags *flag.FlagSet, args []string, std stdio) ([]string, error) {
	flags.SetOutput(std.err)
	for _, arg := range args { // package flag prints the argument unescaped
		if strings.HasPrefix(arg, "-") && rawname.Shown(arg) != arg {
			fmt.Fprintf(std.err, "browser-shell %s: no flag %q; write ./ before a file of that name\n", flags.Name(), arg)
			return nil, errUsage
		}
	}
	var files []string
	for {
		if err := flags.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, err
			}
			return nil, errUsage
		}
		if flags.NArg() == 0 {
			break
		}
		files, args = append(files, flags.Arg(0)), flags.Args()[1:]
	}
	if len(files) == 0 {
		fmt.Fprintf(std.err, "browser-shell %s: name the files of a log\n", flags.Name())
		return nil, errUsage
	}
	return files, nil
}

func describeReport(r audit.Report) string {
	var b strings.Builder
	switch {
	case r.Break != nil:
		fmt.Fprintf(&b, "%s:%d: %s: %s", rawname.Shown(r.Break.File), r.Break.Line, r.Break.Kind, r.Break.Text)
		fmt.Fprintf(&b, "\nlines before it that hold: %d", r.Lines)
	case r.Lines == 0:
		return "no lines"
	default:
		fmt.Fprintf(&b, "whole: %d lines, %s to %s", r.Lines, r.First.Format(time.RFC3339), r.Last.Format(time.RFC3339))
	}
	if r.Lines > 0 {
		fmt.Fprintf(&b, "\nhead: %s (seq %d)", r.Head, r.LastSeq)
		if !r.Complete && r.OK {
			fmt.Fprintf(&b, "\nit begins with seq %d: older lines are not in these files", r.FirstSeq)
		}
	}
	return b.String()
}
