package server

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slimctl/slimctl/server/cdp"
)

// TestFirstCallWaitsForChromium: an agent's first call after a boot comes before Chromium listens.
func TestFirstCallWaitsForChromium(t *testing.T) {
	refused := fmt.Errorf("dial tcp 127.0.0.1:9222: %w", syscall.ECONNREFUSED)
	other := errors.New("it redirects")
	for name, c := range map[string]struct {
		answers []error // of one attempt after the other; the last one for all further ones
		time    time.Duration
		want    error
		tries   int // 0 for any number above one
	}{
		"up":             {answers: []error{nil}, time: time.Hour, tries: 1},
		"starting":       {answers: []error{refused, refused, nil}, time: time.Hour, tries: 3},
		"something else": {answers: []error{other}, time: time.Hour, want: other, tries: 1},
		"never":          {answers: []error{refused}, time: 4 * time.Second, want: refused},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), c.time)
				defer cancel()
				tries := 0
				_, err := dialWhenUp(ctx, func(context.Context) (*cdp.Browser, error) {
					tries++
					return nil, c.answers[min(tries, len(c.answers))-1]
				})
				if !errors.Is(err, c.want) || c.tries > 0 && tries != c.tries || c.tries == 0 && tries < 2 {
					t.Errorf("error %v after %d attempts, want %v after %d", err, tries, c.want, c.tries)
				}
				if c.want == refused && ctx.Err() != nil {
					t.Error("the call's whole time is over, and its answer would be another one")
				}
			})
		})
	}
}
