package image

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// The kinds of registry errors, for errors.Is.
var (
	ErrAuth        = errors.New("not authorized")       // 401 and 403
	ErrNotFound    = errors.New("not found")            // 404
	ErrRateLimited = errors.New("rate limited")         // 429
	ErrRegistry    = errors.New("registry trouble")     // 5xx, or an answer that makes no sense
	ErrUnreachable = errors.New("registry unreachable") // no connection, or one that broke
	ErrCertificate = errors.New("certificate refused")  // by us, for x509's reason
	ErrTimeout     = errors.New("registry timed out")   // connected, then silence
)

// RegistryError is a failed request to a registry. errors.Is finds its kind (ErrAuth and so on) and its cause. An
// interrupted request has no kind; its cause is context.Canceled.
type RegistryError struct {
	// Op is the failed step: "read manifest", "mount blob sha256:…".
	Op string
	// Ref is the reference or the repository of the step.
	Ref string
	// Host is the registry's host and port, if known.
	Host string
	// Status is the HTTP status, or 0 without an answer.
	Status int
	// Code is the distribution specification's error code, such as "MANIFEST_UNKNOWN", or empty.
	Code string
	// Kind is one of the errors above, or nil.
	Kind error
	Err  error
}

func (e *RegistryError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s: ", e.Op, e.Ref)
	switch {
	case e.Status != 0:
		fmt.Fprintf(&b, "error response from registry: %s", e.answer())
	default:
		b.WriteString(withoutURL(e.Err))
	}
	return b.String()
}

// answer returns the status and the server's message, shortened to one line.
func (e *RegistryError) answer() string {
	status := fmt.Sprintf("%d %s", e.Status, http.StatusText(e.Status))
	var te *transport.Error
	if !errors.As(e.Err, &te) || len(te.Errors) == 0 {
		return status
	}
	words := make([]string, 0, len(te.Errors))
	for _, d := range te.Errors {
		words = append(words, strings.TrimSuffix(string(d.Code)+": "+d.Message, ": "))
	}
	return status + ": " + OneLine(strings.Join(words, "; "), 300)
}

// Unwrap returns the kind and the cause.
func (e *RegistryError) Unwrap() []error {
	if e.Kind == nil {
		return []error{e.Err}
	}
	return []error{e.Kind, e.Err}
}

// OneLine returns a server's message without control characters, on one line of at most limit bytes.
func OneLine(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return ' '
		}
		return r
	}, s)
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "…"
	}
	return s
}

// withoutURL returns the message of an error without the URL that net/http adds: a redirected URL holds a signature.
//
// A registry on this machine is tried by TLS and then by plain HTTP, and both errors are joined. Of these it returns a
// timeout or a broken connection, which explain more than "server gave HTTP response to HTTPS client".
func withoutURL(err error) string {
	var idle *idleError
	var op *net.OpError
	var ue *url.Error
	var cert *tls.CertificateVerificationError
	switch {
	case errors.As(err, &cert):
		err = cert.Err
	case errors.As(err, &idle):
		err = idle
	case errors.As(err, &op):
		err = op
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection was closed in the middle"
	case errors.As(err, &ue):
		err = ue.Err
	}
	return OneLine(err.Error(), 500)
}

// RegistryFailure returns err as a *RegistryError. It returns nil and a *RegistryError unchanged.
func RegistryFailure(op, ref, host string, err error) error {
	if err == nil {
		return nil
	}
	var re *RegistryError
	var de *DigestError
	if errors.As(err, &re) || errors.As(err, &de) {
		return err
	}
	e := &RegistryError{Op: op, Ref: ref, Host: host, Err: err}
	var te *transport.Error
	var idle *idleError
	var cert *tls.CertificateVerificationError
	switch {
	case errors.Is(err, context.Canceled):
	case errors.As(err, &cert): // the error of plain HTTP after it doesn't matter
		e.Kind = ErrCertificate
	case errors.As(err, &te):
		e.Status, e.Kind = te.StatusCode, kindOf(te.StatusCode)
		if len(te.Errors) > 0 {
			e.Code = string(te.Errors[0].Code)
		}
	case errors.As(err, new(leashError)):
		e.Kind = ErrRegistry
	case errors.As(err, &idle), errors.Is(err, context.DeadlineExceeded):
		e.Kind = ErrTimeout
	case isNetwork(err):
		e.Kind = ErrUnreachable
	default:
		e.Kind = ErrRegistry
	}
	return e
}

func kindOf(status int) error {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return ErrAuth
	case http.StatusNotFound:
		return ErrNotFound
	case http.StatusTooManyRequests:
		return ErrRateLimited
	}
	return ErrRegistry
}

// isNetwork reports whether a request got no answer because of err: no route, no name, an untrusted certificate.
func isNetwork(err error) bool {
	var op *net.OpError
	var ue *url.Error
	return errors.As(err, &op) || errors.As(err, &ue) || IsCut(err)
}

// IsCut reports whether err is a connection that broke.
func IsCut(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, net.ErrClosed)
}

// idleError is a connection that was silent for too long.
type idleError struct {
	host, step string
	after      time.Duration
}

func (e *idleError) Error() string {
	return fmt.Sprintf("%s sent nothing for %s at %s", e.host, e.after, e.step)
}

// PlatformError is a base without the requested platform.
type PlatformError struct {
	Ref  string
	Want v1.Platform
	Have []v1.Platform
}

func (e *PlatformError) Error() string {
	have := make([]string, 0, len(e.Have))
	for _, p := range e.Have {
		have = append(have, p.String())
	}
	slices.Sort(have)
	if len(have) == 0 {
		return fmt.Sprintf("%s has no platform %s: it holds no image", e.Ref, e.Want)
	}
	return fmt.Sprintf("%s has no platform %s: it has %s", e.Ref, e.Want, OneLine(strings.Join(have, ", "), 500))
}
