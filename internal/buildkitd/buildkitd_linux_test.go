package buildkitd

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestVersionIsTheOneOfGoMod(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join("..", "..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "github.com/moby/buildkit " + Version + "\n"; !strings.Contains(string(mod), want) {
		t.Errorf("go.mod doesn't require %s", want)
	}
}

func TestDaemonComesAndGoes(t *testing.T) {
	var d *Daemon
	t.Run("up", func(t *testing.T) {
		d = Start(t)
		workers, err := d.Client(t).ListWorkers(t.Context())
		if err != nil || len(workers) != 1 {
			t.Fatalf("workers %v, %v", workers, err)
		}
		t.Logf("worker: %v", workers[0].Labels)
		// At its default place it would be taken away by a daemon of another room's tests.
		if _, err := os.Stat(filepath.Join(filepath.Dir(strings.TrimPrefix(d.Addr, "unix://")), "t")); err != nil {
			t.Errorf("the socket for traces: %v", err)
		}
	})
	if d == nil {
		t.SkipNow()
	}
	if _, err := os.Stat(d.Root); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", d.Root, err)
	}
	if _, err := os.Stat(strings.TrimPrefix(d.Addr, "unix://")); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", d.Addr, err)
	}
}

func TestArm64IsRegisteredForTheTestOnly(t *testing.T) {
	before, quiet := registration(t)
	t.Run("registered", func(t *testing.T) {
		RegisterArm64(t)
		c := Start(t).Client(t)
		workers, err := c.ListWorkers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range workers[0].Platforms {
			if p.OS == "linux" && p.Architecture == "arm64" {
				return
			}
		}
		t.Errorf("no linux/arm64 among %v", workers[0].Platforms)
	})
	after, still := registration(t)
	if !quiet || !still {
		t.Log("another test had arm64 registered: the registrations can't be compared")
	} else if before != after {
		t.Errorf("registration was %q, is %q", before, after)
	}
}

// registration returns what is registered for arm64, and false while another process holds it.
func registration(t *testing.T) (text string, alone bool) {
	t.Helper()
	dir, err := toolsDir()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(filepath.Dir(dir), "binfmt.lock"), os.O_RDONLY|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return "", false
	}
	b, _ := os.ReadFile(binfmtArm64) // empty: none
	return string(b), true
}
