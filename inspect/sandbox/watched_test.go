package sandbox

import (
	"errors"
	"fmt"
	"testing"

	"github.com/slimctl/slimctl/inspect/sandbox/sandboxtest"
)

// TestOpened: what a program opens is known by the path that a link leads to, with the program; what nobody opens is not.
func TestOpened(t *testing.T) {
	t.Parallel()
	e := runcEngineUnderTest(t)
	e.Watch = true
	sb := e.start(guestImage(t, sandboxtest.Layer(t, sandboxtest.File("etc/read", "x"), sandboxtest.File("etc/unread", "x"),
		sandboxtest.Symlink("link", "etc/read"))), settings("cat", "/link"))
	finish(t, sb)
	opened, err := sb.Opened()
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]string{}
	for _, o := range opened {
		by[o.File] = o.By
	}
	if _, ok := by["/etc/read"]; !ok || by["/etc/read"] != "" && by["/etc/read"] != "/guest" { // a program that ends at once isn't always known
		t.Errorf("opened: %v", by)
	}
	if _, ok := by["/guest"]; !ok {
		t.Errorf("the program itself is not among what was opened: %v", by)
	}
	for _, p := range []string{"/etc/unread", "/link"} {
		if _, ok := by[p]; ok {
			t.Errorf("%s was opened", p)
		}
	}
	e.Watch = false
	sb = e.start(guestImage(t), settings("exit", "0"))
	finish(t, sb)
	if _, err := sb.Opened(); !errors.Is(err, errNotObserved) {
		t.Errorf("nobody asked: %v", err)
	}
}

// TestOpeningsAreBounded: a container that opens files without end fills nothing, and that not all are known is said.
func TestOpeningsAreBounded(t *testing.T) {
	s := &Sandbox{}
	for i := range maxOpened + 1 {
		s.addOpened(fmt.Sprintf("/rootfs/%d", i), "", "/rootfs")
	}
	opened, err := s.Opened()
	if len(opened) != maxOpened || err == nil || opened[0].File != "/0" {
		t.Errorf("%d files, %v, first %q", len(opened), err, opened[0].File)
	}
}
