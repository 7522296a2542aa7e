// Command standin stands for agent-browser in the benchmark: it knows its
// version, leaves a daemon that does nothing at the first command of a session
// (`stream disable`), and every command succeeds at once.
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
		time.Sleep(time.Hour) // until it is ended
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
