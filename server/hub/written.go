package hub

import (
	"context"
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// written is a result in the form in which the server wrote it.
type written struct {
	*mcp.CallToolResult
	text  json.RawMessage
	dress bool // its server is of the older era, its client of the newer
}

// writtenKey is the context key of a request's *written: a handler returns go-sdk's own type.
type writtenKey struct{}

func keep(ctx context.Context, w written) {
	if place, ok := ctx.Value(writtenKey{}).(*written); ok {
		*place = w
	}
}

// MarshalJSON adds the fields of every result of the newer era, as go-sdk does.
func (w written) MarshalJSON() ([]byte, error) {
	if !w.dress {
		return w.text, nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(w.text, &fields); err != nil {
		return nil, err
	}
	meta := map[string]any{}
	if raw := fields["_meta"]; raw != nil {
		var given map[string]json.RawMessage
		if err := json.Unmarshal(raw, &given); err != nil {
			return nil, err
		}
		for k, v := range given {
			meta[k] = v
		}
	}
	if info, ok := w.Meta[mcp.MetaKeyServerInfo]; ok {
		meta[mcp.MetaKeyServerInfo] = info
	}
	text, err := json.Marshal(meta)
	fields["_meta"], fields["resultType"] = text, json.RawMessage(`"complete"`)
	if err != nil {
		return nil, err
	}
	return json.Marshal(fields)
}
