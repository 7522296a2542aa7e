package upstream

import (
	"context"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// Tap keeps a result as the server wrote it: go-sdk's types lose the fields
// that they don't have, and numbers that a float64 can't hold.
type Tap struct {
	conn   *conn
	id     jsonrpc.ID
	result json.RawMessage // conn.mu
}

type tapKey struct{}

// WithTap gives a context for one call, or for several one after the other.
func WithTap(ctx context.Context) (context.Context, *Tap) {
	t := &Tap{}
	return context.WithValue(ctx, tapKey{}, t), t
}

// Result gives the result of the last call after its end, nil if there is none
// or if the server is no program of ours. Without it the Tap is not freed.
func (t *Tap) Result() json.RawMessage {
	if t.conn == nil {
		return nil
	}
	t.conn.mu.Lock()
	defer t.conn.mu.Unlock()
	delete(t.conn.taps, t.id)
	return t.result
}

func (c *conn) tap(id jsonrpc.ID, t *Tap) {
	t.Result()
	c.mu.Lock()
	defer c.mu.Unlock()
	t.conn, t.id, t.result = c, id, nil
	c.taps[id] = t
}

func (c *conn) tapped(res *jsonrpc.Response) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.taps[res.ID]; t != nil {
		t.result = res.Result
	}
}
