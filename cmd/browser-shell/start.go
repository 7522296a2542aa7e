package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/slimctl/slimctl/server/process"
)

// runStart starts programs for supervisord that need preparation. It waits for the display, or ends the remains of a
// killed predecessor, and then becomes the program.
func runStart(ctx context.Context, args []string, std stdio) error {
	flags := flag.NewFlagSet("start", flag.ContinueOnError)
	flags.SetOutput(std.err)
	display := flags.String("display", "", "wait until the X server of this `NUMBER` accepts connections")
	cageName := flags.String("cage", "", "hold the program in the cage of the browser, the desktop or the windows")
	entered := flags.Bool("entered", false, "for the command itself: the supervisor runs")
	pidFile := flags.String("pidfile", "", "end what is left of the process group that this `FILE` names")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return errUsage
	}
	argv := flags.Args()
	if len(argv) == 0 || !filepath.IsAbs(argv[0]) {
		fmt.Fprintln(std.err, "browser-shell start: name the program by its absolute path: browser-shell start [--display N] [--pidfile FILE] [--cage NAME] PROGRAM [ARG]...")
		return errUsage
	}
	if *pidFile != "" {
		if pid := readPID(*pidFile); pid > 1 {
			process.EndGroup(pid, filepath.Base(argv[0]), predecessorTime)
		}
	}
	if *display != "" {
		if err := awaitDisplay(ctx, filepath.Join("/tmp/.X11-unix", "X"+*display)); err != nil {
			return err
		}
	}
	if *cageName != "" {
		return startCaged(*cageName, argv, *entered, std)
	}
	return becomeProgram(argv, os.Environ())
}

// predecessorTime is the time for killed processes to end. Afterwards the program starts anyway and reports its own
// error.
const predecessorTime = 10 * time.Second

// readPID returns the process id in a pid file, or 0 for none.
func readPID(file string) int {
	text, _ := os.ReadFile(file)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return pid
}

// startsFile holds the times of Chromium's last starts. The cage keeps Chromium from writing there.
const startsFile = "/run/desktop/starts"

// maxStarts is the number of starts within startsTime that `health` reports, until there is none for startsTime.
const (
	maxStarts  = 4
	startsTime = time.Minute
)

// recordStart adds a start to the file. It keeps the last maxStarts.
func recordStart(file string, now time.Time) error {
	starts := append(readStarts(file), now)
	text, err := json.Marshal(starts[max(0, len(starts)-maxStarts):])
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

func readStarts(file string) (starts []time.Time) {
	text, _ := os.ReadFile(file)
	_ = json.Unmarshal(text, &starts) // without the file, health knows of no start
	return starts
}

// awaitDisplay waits until an X server accepts connections at its socket. supervisord and health report one that never
// does.
func awaitDisplay(ctx context.Context, socket string) error {
	for {
		c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		if err == nil {
			return c.Close()
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
