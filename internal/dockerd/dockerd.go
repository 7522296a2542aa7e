//go:build unix

// Package dockerd provides a Docker daemon for tests.
package dockerd

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/slimctl/slimctl/internal/need"
)

// Host returns the address of a Docker daemon: DOCKER_HOST or the default, if it answers. Otherwise it starts a
// private one, which ends with this process. That requires root and dockerd.
func Host(t testing.TB) string {
	t.Helper()
	host := client.DefaultDockerHost
	if env := os.Getenv(client.EnvOverrideHost); env != "" {
		host = env
	}
	if ping(t.Context(), host) == nil {
		return host
	}
	if os.Geteuid() != 0 {
		need.Missing(t, "no Docker daemon answers at %s, and starting one needs root", host)
	}
	need.Program(t, "dockerd")
	host, err := private()
	if err != nil {
		t.Fatal(err)
	}
	return host
}

// private starts a daemon for this process. Its network namespace is empty, so that it doesn't change the machine's
// bridges and firewall.
var private = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "slimctl-docker-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o711); err != nil { // the socket belongs to its group
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "daemon.json"), []byte("{}"), 0o600); err != nil {
		return "", err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return "", err
	}
	defer log.Close()
	// The shell ends the daemon and removes the directory when this process ends in any way, which closes the pipe.
	cmd := exec.Command("/bin/sh", "-c", `PATH=$PATH:/usr/sbin:/sbin
unshare --net dockerd --config-file "$0/daemon.json" --host "unix://$0/socket" --data-root "$0/data" --exec-root "$0/exec" \
	--pidfile "$0/pid" --bridge none --iptables=false --ip-forward=false --ip-masq=false </dev/null &
read -r _
kill $!
wait $!
rm -rf "$0"`, dir)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // an interrupt from the terminal is for the tests only
	alive, err := cmd.StdinPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	aliveUntilExit = alive
	host := "unix://" + filepath.Join(dir, "socket")
	for deadline := time.Now().Add(need.Patience); ; time.Sleep(50 * time.Millisecond) {
		err := ping(context.Background(), host)
		if err == nil {
			return host, nil
		}
		if time.Now().After(deadline) {
			text, _ := os.ReadFile(log.Name())
			alive.Close()
			return "", fmt.Errorf("dockerd doesn't answer: %w\n%s", err, text)
		}
	}
})

// aliveUntilExit holds the pipe that ends the daemon when it is closed. It must stay reachable, so that it isn't closed
// early.
var aliveUntilExit any

func ping(ctx context.Context, host string) error {
	api, err := client.New(client.FromEnv, client.WithHost(host))
	if err != nil {
		return err
	}
	defer api.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err = api.Ping(ctx, client.PingOptions{})
	return err
}
