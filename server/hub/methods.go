package hub

import (
	"encoding/json"
	"net/http"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// Methods of servers of all revisions, and those of them that require params.
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

// refuseFrame answers a frame of the older era that go-sdk would answer with 400 and plain text, which clients don't
// recognize as an answer. It reports whether it did. status is the HTTP status of an answer.
func refuseFrame(w http.ResponseWriter, body []byte, status int) bool {
	var frame map[string]json.RawMessage // a struct would also accept Method
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
	if !call { // notifications have no answer; one of a later revision is not an error
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
