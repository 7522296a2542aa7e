package protocol

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"golang.org/x/sync/semaphore"
)

// Limits for the memory of requests that no budget has counted yet.
const (
	smallFrame = 64 << 10 // bytes of a body that any number of clients may send slowly
	places     = 16       // concurrently parsed frames; requests with a larger body
	patience   = 5 * time.Second
)

// handler reads and checks requests before next receives them.
type handler struct {
	next           http.Handler
	large, parsing *semaphore.Weighted
	patience       time.Duration
}

// Frames returns a handler that forwards only bodies that are valid frames, by the rules of Serve for lines. Others get
// 400, or 413 if they are longer than MaxFrame. It parses 16 frames at once, and admits as many requests with more than
// 64 KiB; others wait for 5 s and then get 503. Place it inside the check of the Origin.
func Frames(next http.Handler) http.Handler {
	return &handler{next: next, large: semaphore.NewWeighted(places), parsing: semaphore.NewWeighted(places), patience: patience}
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		h.next.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, smallFrame+1))
	if err == nil && len(body) > smallFrame {
		if !h.enter(r.Context(), h.large) {
			sendBusy(w)
			return
		}
		defer h.large.Release(1) // after the call, which holds copies of the body
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
	if !h.enter(r.Context(), h.parsing) {
		sendBusy(w)
		return
	}
	msg, refused := h.parseBody(r, body)
	if msg == nil || refused != nil {
		sendRefusal(w, http.StatusBadRequest, refused)
		return
	}
	if req, ok := msg.(*jsonrpc.Request); ok {
		if r.Header.Get("Mcp-Protocol-Version") < newEra {
			if status, refused := checkMethod(req); status != 0 {
				sendRefusal(w, status, refused)
				return
			}
		}
		r = r.WithContext(context.WithValue(r.Context(), methodKey{}, req.Method))
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	h.next.ServeHTTP(w, r)
}

// enter waits for a place; it returns false if there is none in time.
func (h *handler) enter(ctx context.Context, at *semaphore.Weighted) bool {
	ctx, cancel := context.WithTimeout(ctx, h.patience)
	defer cancel()
	return at.Acquire(ctx, 1) == nil
}

type methodKey struct{}

// MethodOf returns the method of a request that Frames has checked; "" if it is no request of JSON-RPC.
func MethodOf(r *http.Request) string {
	method, _ := r.Context().Value(methodKey{}).(string)
	return method
}

// newEra is the first revision for which go-sdk answers an unknown method with JSON-RPC.
const newEra = "2026-07-28"

// checkMethod refuses requests of the older era that go-sdk would answer with 400 and plain text, which clients don't
// recognize as an answer. The status is 0 if the request is good.
func checkMethod(req *jsonrpc.Request) (status int, refused *jsonrpc.Response) {
	code := int64(0)
	switch known := slices.Contains(methods, req.Method); {
	case !known && !req.IsCall():
		return http.StatusAccepted, nil // a notification of another revision is not an error
	case !known:
		code = jsonrpc.CodeMethodNotFound
	case strings.HasPrefix(req.Method, "notifications/") == req.IsCall():
		code = jsonrpc.CodeInvalidRequest
	case req.Params == nil && slices.Contains(needParams, req.Method):
		code = jsonrpc.CodeInvalidParams
	default:
		return 0, nil
	}
	if !req.IsCall() {
		return http.StatusBadRequest, nil
	}
	return http.StatusOK, &jsonrpc.Response{ID: req.ID, Error: ownError(nil, code)}
}

// needParams lists the methods that require params.
var needParams = []string{"initialize", "tools/call", "subscriptions/listen", "notifications/progress"}

// parseBody parses a body and releases the place for parsing.
func (h *handler) parseBody(r *http.Request, body []byte) (msg jsonrpc.Message, refused *jsonrpc.Response) {
	defer h.parsing.Release(1)
	msg, refused = parseFrame(body)
	if req, ok := msg.(*jsonrpc.Request); ok {
		// If header and body differ, go-sdk answers with a HeaderMismatch error.
		if version, ok := readString(versionOf(req)); ok && version == r.Header.Get("Mcp-Protocol-Version") {
			refused = checkVersion(msg)
		}
	}
	return msg, refused
}

func sendBusy(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	w.Header().Set("Connection", "close") // its body may be unread
	sendRefusal(w, http.StatusServiceUnavailable, refuse(noID, jsonrpc.CodeInternalError, "too many requests at once; try again"))
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
