package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// maxLog is how much of a program's log is printed, in bytes: its end.
const maxLog = 1 << 20

// runLogs prints the end of a program's log, or which programs have one: an image needs no other program to read them.
func runLogs(_ context.Context, args []string, std stdio) error {
	flags := flag.NewFlagSet("logs", flag.ContinueOnError)
	program := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		program, args = args[0], args[1:]
	}
	if err := parse(flags, args, std.err); err != nil {
		return err
	}
	return printLog(logDir, program, std.out)
}

// printLog prints the end of the log of a program, or, for an empty one, the names of those that have a log in dir.
func printLog(dir, program string, out io.Writer) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if program == "" {
		logs, err := fs.Glob(root.FS(), "*.log")
		for _, name := range logs {
			fmt.Fprintln(out, strings.TrimSuffix(name, ".log"))
		}
		return err
	}
	f, err := root.Open(program + ".log")
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no program %q has a log in %s; `browser-shell logs` names those that have", program, dir)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > maxLog {
		if _, err := f.Seek(-maxLog, io.SeekEnd); err != nil {
			return err
		}
	}
	_, err = io.Copy(out, io.LimitReader(f, maxLog))
	return err
}
