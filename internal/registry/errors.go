package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// apiError is an answer of the specification's section "Error Codes". Statuses are those of the distribution registry.
type apiError struct {
	status  int
	code    string
	message string
	detail  any
}

func (e *apiError) Error() string { return e.code + ": " + e.message }

func errName(name string) error {
	return &apiError{http.StatusBadRequest, "NAME_INVALID", fmt.Sprintf("invalid repository name %q", name), nil}
}

func errNameUnknown(name string) error {
	return &apiError{http.StatusNotFound, "NAME_UNKNOWN", fmt.Sprintf("no repository %q", name), nil}
}

func errDigest(format string, args ...any) error {
	return &apiError{http.StatusBadRequest, "DIGEST_INVALID", fmt.Sprintf(format, args...), nil}
}

func errBlobUnknown(name string, h v1.Hash) error {
	return &apiError{http.StatusNotFound, "BLOB_UNKNOWN", fmt.Sprintf("no blob %s in %s", h, name), map[string]string{"digest": h.String()}}
}

func errManifest(format string, args ...any) error {
	return &apiError{http.StatusBadRequest, "MANIFEST_INVALID", fmt.Sprintf(format, args...), nil}
}

func errUnsupported(method string) error {
	return &apiError{http.StatusMethodNotAllowed, "UNSUPPORTED", method + " is not supported here", nil}
}

// writeError answers with err. Anything that is not an apiError is the registry's own trouble: 500.
func writeError(x *exchange, err error) {
	var e *apiError
	if !errors.As(err, &e) {
		e = &apiError{http.StatusInternalServerError, "UNKNOWN", err.Error(), nil}
	}
	entry := map[string]any{"code": e.code, "message": e.message}
	if e.detail != nil {
		entry["detail"] = e.detail
	}
	writeJSON(x, e.status, map[string]any{"errors": []any{entry}})
}

func writeJSON(x *exchange, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		b = []byte(`{}`)
	}
	writeBody(x, status, "application/json", b)
}

// writeBody answers with b, or with its length alone for HEAD.
func writeBody(x *exchange, status int, contentType string, b []byte) {
	x.Header().Set("Content-Type", contentType)
	x.Header().Set("Content-Length", strconv.Itoa(len(b)))
	x.WriteHeader(status)
	if x.req.Method != http.MethodHead {
		_, _ = x.Write(b) // the client has gone: nobody to tell
	}
}
