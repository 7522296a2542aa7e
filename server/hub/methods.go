package hub

import (
	"encoding/json"
	"net/http"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// Methods that a server of any revision has, and those of them that are nothing without params.
var (
	requestMethods = []string{
		"completion/complete", "initialize", "logging/setLevel", "ping", "prompts/get", "prompts/list", "resources/list",
		"resources/read", "resources/subscribe", "resources/templates/list", "resources/unsubscribe", "server/discover",
		"subscriptions/listen", "tools/call", "tools/list",
	}
	notificationMethods = []string{
		"notifications/cancelled", "notifications/initialized", "notifications/progress", "notifications/roots/list_changed",
	}
	needParams = []string{
		"completion/complete", "initialize", "logging/setLevel", "prompts/get", "resources/read", "resources/subscribe",
		"resources/unsubscribe", "subscriptions/listen", "tools/call", "notifications/progress",
	}
)

// refuse answers a frame of the older era that go-sdk would answer with 400 and a text, which clients don't take for an answer
// to their request; it reports whether it did. status is that of an answer.
func refuse(w http.ResponseWriter, body []byte, status int) bool {
	var frame map[string]json.RawMessage // a struct would take Method too
	if json.Unmarshal(body, &frame) != nil || frame["method"] == nil {
		return false
	}
	method, call := methodOf(body), frame["id"] != nil
	known, params := requestMethods, frame["params"]
	if !call {
		known = notificationMethods
	}
	err := &jsonrpc.Error{}
	switch {
	case slices.Contains(known, method) && (!slices.Contains(needParams, method) || len(params) > 0 && string(params) != "null"):
		return false
	case !slices.Contains(known, method) && !slices.Contains(requestMethods, method) && !slices.Contains(notificationMethods, method):
		err.Code, err.Message = jsonrpc.CodeMethodNotFound, "the method is not known"
	case !slices.Contains(known, method):
		err.Code, err.Message = jsonrpc.CodeInvalidRequest, "a notification has no id, and every other request has one"
	default:
		err.Code, err.Message = jsonrpc.CodeInvalidParams, "params are missing"
	}
	if !call { // nothing answers a notification; one of a later revision is no error
		status = http.StatusBadRequest
		if err.Code == jsonrpc.CodeMethodNotFound {
			status = http.StatusAccepted
		}
		w.WriteHeader(status)
		return true
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   *jsonrpc.Error  `json:"error"`
	}{"2.0", frame["id"], err})
	return true
}
