package server

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestAdmissionIsFair: two start at a time, and a client with many starts doesn't delay another's by more than one.
func TestAdmissionIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := admission{served: map[string]int{}}
		var mu sync.Mutex
		var order []string
		var running, most int
		var all sync.WaitGroup
		start := func(owner string) {
			all.Go(func() {
				leave, r := a.enter(t.Context(), owner)
				if r != nil {
					t.Error(r)
					return
				}
				mu.Lock()
				order = append(order, owner)
				running++
				most = max(most, running)
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				running--
				mu.Unlock()
				leave()
			})
			synctest.Wait()
		}
		for _, owner := range strings.Split("aaaaaaabcb", "") {
			start(owner)
		}
		all.Wait()
		if got := strings.Join(order, ""); got != "aabcabaaaa" || most != maxStarts {
			t.Errorf("%s, %d at a time", got, most)
		}
		if a.running != 0 || len(a.waiting)+len(a.served) != 0 {
			t.Errorf("left: %+v", &a)
		}
	})
}

// TestAdmissionEnds: who waits in vain is told how many were ahead, and takes nobody's turn.
func TestAdmissionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := admission{served: map[string]int{}}
		var leaves []func()
		for range maxStarts {
			leave, _ := a.enter(t.Context(), "a")
			leaves = append(leaves, leave)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, r := a.enter(ctx, "b")
		if r == nil || !r.Retryable || r.RetryAfter == 0 || !strings.Contains(r.Message, "2 were ahead") {
			t.Errorf("got %+v", r)
		}
		for _, leave := range leaves {
			leave()
		}
		if leave, r := a.enter(t.Context(), "b"); r != nil {
			t.Error(r)
		} else {
			leave()
		}
	})
}
