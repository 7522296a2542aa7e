// Command standin replaces agent-browser in the benchmark. It prints its version, starts an idle daemon at a session's
// first command (`stream disable`), and succeeds at once with every command.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"
)

func main() {
	switch {
	case slices.Contains(os.Args, "--version"):
		fmt.Println("agent-browser 0.41.2")
		return
	case slices.Contains(os.Args, "daemon"):
		time.Sleep(time.Hour) // until it is killed
		return
	case slices.Contains(os.Args, "disable"):
		if err := daemon(os.Args[1+slices.Index(os.Args[1:], "--session")+1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if _, err := os.Stdout.WriteString(`{"success":true,"data":{},"error":null}` + "\n"); err != nil {
		os.Exit(1)
	}
}

// daemon starts the session's daemon, which registers by a pid file.
func daemon(session string) error {
	cmd := exec.Command(os.Args[0], "daemon")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(os.Getenv("AGENT_BROWSER_SOCKET_DIR"), session+".pid"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600)
}
