package protocol

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// Limits for the memory of requests that no budget has counted yet.
const (
	smallFrame = 64 << 10 // bytes of a body that any number of clients may send slowly
	places     = 16       // concurrently parsed frames; requests with a larger body
	patience   = 5 * time.Second
)

// gate limits concurrency.
type gate chan struct{}

// enter waits for a place; it returns false if there is none in time.
func (g gate) enter(ctx context.Context, most time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	select {
	case g <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (g gate) leave() { <-g }

// handler reads and checks requests before next receives them.
type handler struct {
	next           http.Handler
	large, parsing gate
	patience       time.Duration
}

// Frames returns a handler that forwards only bodies that are valid frames, by the rules of Serve for lines. Others get
// 400, or 413 if they are longer than MaxFrame. It parses 16 frames at once, and admits as many requests with more than
// 64 KiB; others wait for 5 s and then get 503. Place it inside the check of the Origin.
func Frames(next http.Handler) http.Handler {
	return &handler{next: next, large: make(gate, places), parsing: make(gate, places), patience: patience}
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		h.next.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, smallFrame+1))
	if err == nil && len(body) > smallFrame {
		if !h.large.enter(r.Context(), h.patience) {
			sendBusy(w)
			return
		}
		defer h.large.leave() // after the call, which holds copies of the body
		rest := http.MaxBytesReader(w, r.Body, MaxFrame-int64(len(body)))
		body, err = io.ReadAll(io.MultiReader(bytes.NewReader(body), rest))
	}
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		w.Header().Set("Connection", "close")
		sendRefusal(w, http.StatusRequestEntityTooLarge, tooLong())
		return
	}
	if err != nil {
		return // nobody is left to answer
	}
	if !h.parsing.enter(r.Context(), h.patience) {
		sendBusy(w)
		return
	}
	good, refused := h.parseBody(r, body)
	if !good {
		sendRefusal(w, http.StatusBadRequest, refused)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	h.next.ServeHTTP(w, r)
}

// parseBody parses a body and releases the place for parsing.
func (h *handler) parseBody(r *http.Request, body []byte) (good bool, refused *jsonrpc.Response) {
	defer h.parsing.leave()
	msg, refused := parseFrame(body)
	if sameVersion(r, msg) {
		refused = checkVersion(msg)
	}
	return msg != nil && refused == nil, refused
}

func sendBusy(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	w.Header().Set("Connection", "close") // its body may be unread
	sendRefusal(w, http.StatusServiceUnavailable, refuse(noID, jsonrpc.CodeInternalError, "too many requests at once; try again"))
}

// sameVersion reports whether header and body name the same revision; if not, go-sdk answers with a HeaderMismatch
// error.
func sameVersion(r *http.Request, msg jsonrpc.Message) bool {
	req, ok := msg.(*jsonrpc.Request)
	if !ok {
		return false
	}
	version, _, ok := versionOf(req)
	return ok && version == r.Header.Get("Mcp-Protocol-Version")
}

// sendRefusal writes a refusal, or only the status if there is none.
func sendRefusal(w http.ResponseWriter, status int, refused *jsonrpc.Response) {
	if refused == nil {
		w.WriteHeader(status)
		return
	}
	data, err := jsonrpc.EncodeMessage(refused)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(data) // fails if the client has left
}
