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

// maxLog is the number of bytes printed from the end of a program's log.
const maxLog = 1 << 20

// runLogs prints the end of a program's log, or the names of the programs with a log. The image has no other program to
// read logs.
func runLogs(_ context.Context, args []string, std stdio) error {
	flags := flag.NewFlagSet("logs", flag.ContinueOnError)
	program := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		program, args = args[0], args[1:]
	}
	if err := parseFlags(flags, args, std.err); err != nil {
		return err
	}
	return printLog(logDir, program, std.out)
}

// printLog prints the end of a program's log in dir. For an empty program it prints the names of the programs with a
// log.
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
