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

// Bounds on the memory of requests that no budget has counted yet.
const (
	smallFrame = 64 << 10 // bytes of a body that any number of clients may take their time over
	places     = 16       // frames that are parsed at once; requests with a larger body
	patience   = 5 * time.Second
)

// gate lets a few in at once.
type gate chan struct{}

// enter waits for a place; false if there is none in time.
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

// handler reads and checks requests before next sees them.
type handler struct {
	next           http.Handler
	large, parsing gate
	patience       time.Duration
}

// Frames hands on only bodies that are good frames, by the rules that Serve
// has for lines; others are answered with 400, or 413 if they are longer than
// MaxFrame. 16 frames are parsed at once, and as many requests with more than
// 64 KiB may be there; others wait for 5 s and are answered with 503 then.
// It belongs inside of what checks the Origin.
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
			busy(w)
			return
		}
		defer h.large.leave() // after the call, which holds copies of the body
		rest := http.MaxBytesReader(w, r.Body, MaxFrame-int64(len(body)))
		body, err = io.ReadAll(io.MultiReader(bytes.NewReader(body), rest))
	}
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		w.Header().Set("Connection", "close")
		answer(w, http.StatusRequestEntityTooLarge, tooLong())
		return
	}
	if err != nil {
		return // there is no one left to answer
	}
	if !h.parsing.enter(r.Context(), h.patience) {
		busy(w)
		return
	}
	good, refused := h.check(r, body)
	if !good {
		answer(w, http.StatusBadRequest, refused)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	h.next.ServeHTTP(w, r)
}

// check parses a body and frees the place for that.
func (h *handler) check(r *http.Request, body []byte) (good bool, refused *jsonrpc.Response) {
	defer h.parsing.leave()
	msg, refused := parse(body)
	if sameVersion(r, msg) {
		refused = checkVersion(msg)
	}
	return msg != nil && refused == nil, refused
}

func busy(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	w.Header().Set("Connection", "close") // its body may not be read yet
	answer(w, http.StatusServiceUnavailable, refuse(noID, jsonrpc.CodeInternalError, "too many requests at once; try again"))
}

// sameVersion tells whether header and body name the same revision; if not,
// go-sdk answers with a HeaderMismatch error.
func sameVersion(r *http.Request, msg jsonrpc.Message) bool {
	req, ok := msg.(*jsonrpc.Request)
	if !ok {
		return false
	}
	version, _, ok := versionOf(req)
	return ok && version == r.Header.Get("Mcp-Protocol-Version")
}

// answer writes a refusal, or the status alone if there is none.
func answer(w http.ResponseWriter, status int, refused *jsonrpc.Response) {
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
	_, _ = w.Write(data) // who has gone needs no answer
}
