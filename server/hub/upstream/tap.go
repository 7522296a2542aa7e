package upstream

import (
	"context"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// Tap keeps a result in the server's own form: go-sdk's types lose unknown fields, and numbers that a float64 can't
// represent.
type Tap struct {
	conn   *conn
	id     jsonrpc.ID
	result json.RawMessage // guarded by conn.mu
}

type tapKey struct{}

// WithTap returns a context for one call, or for several in sequence.
func WithTap(ctx context.Context) (context.Context, *Tap) {
	t := &Tap{}
	return context.WithValue(ctx, tapKey{}, t), t
}

// Result returns the result of the last call after its end. It returns nil if there is none, or if the server is not a
// program of ours. It also frees the Tap.
func (t *Tap) Result() json.RawMessage {
	if t.conn == nil {
		return nil
	}
	t.conn.mu.Lock()
	defer t.conn.mu.Unlock()
	delete(t.conn.taps, t.id)
	return t.result
}

func (c *conn) addTap(id jsonrpc.ID, t *Tap) {
	t.Result()
	c.mu.Lock()
	defer c.mu.Unlock()
	t.conn, t.id, t.result = c, id, nil
	c.taps[id] = t
}

func (c *conn) fillTap(res *jsonrpc.Response) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.taps[res.ID]; t != nil {
		t.result = res.Result
	}
}
