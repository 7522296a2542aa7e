package upstream

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestPanic: what goes wrong in the hub's own code over one server ends that server's attempt, not the hub. The server
// comes back, and the others do not notice.
func TestPanic(t *testing.T) {
	var armed atomic.Bool
	fail := func(of string) mcp.Middleware {
		return func(next mcp.MethodHandler) mcp.MethodHandler {
			return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
				if method == of && armed.CompareAndSwap(true, false) {
					panic("a secret argument")
				}
				return next(ctx, method, req)
			}
		}
	}
	for name, o := range map[string]Options{
		"sending":   {Sending: []mcp.Middleware{fail("tools/call")}},
		"receiving": {Receiving: []mcp.Middleware{fail("notifications/message")}},
		"its state": {OnState: func(st Status) {
			if st.State == Running && armed.CompareAndSwap(true, false) {
				panic("a secret argument")
			}
		}},
		"its start": {Sending: []mcp.Middleware{fail("server/discover")}},
	} {
		t.Run(name, func(t *testing.T) {
			other := stub(t, "good", Options{})
			untouched := up(t, other)
			armed.Store(name == "its state" || name == "its start")
			s := stub(t, "talkative", o)
			session := up(t, s)
			if name == "sending" || name == "receiving" {
				armed.Store(true)
				_ = echo(t.Context(), session) // it fails, or a notification comes with it that does
			}
			eventually(t, "the server was started again and answers", func() bool {
				now, err := s.Session()
				return err == nil && s.Status().Restarts > 0 && echo(t.Context(), now) == nil
			})
			if armed.Load() {
				t.Error("nothing went wrong")
			}
			if err := echo(t.Context(), untouched); err != nil || other.Status().Restarts != 0 {
				t.Errorf("the other server: %v, %+v", err, other.Status())
			}
		})
	}
}

// TestMissingParams: a server's notifications and requests without parameters end nothing.
func TestMissingParams(t *testing.T) {
	var updated atomic.Int64
	s := stub(t, "hollow", Options{Client: &mcp.ClientOptions{
		ElicitationHandler: func(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: req.Params.Message}, nil
		},
		ResourceUpdatedHandler: func(_ context.Context, req *mcp.ResourceUpdatedNotificationRequest) {
			if req.Params.URI == "test://last" {
				updated.Add(1)
			}
		},
		ElicitationCompleteHandler: func(_ context.Context, req *mcp.ElicitationCompleteNotificationRequest) {
			_ = req.Params.ElicitationID
		},
	}})
	session := up(t, s)
	eventually(t, "the last one is heard", func() bool { return updated.Load() > 0 })
	if err := echo(t.Context(), session); err != nil {
		t.Error(err)
	}
	if st := s.Status(); st.State != Running || st.Restarts != 0 {
		t.Errorf("got %+v", st)
	}
}
