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

// The kinds of trouble with a registry, for errors.Is.
var (
	ErrAuth        = errors.New("not authorized")       // 401 and 403
	ErrNotFound    = errors.New("not found")            // 404
	ErrRateLimited = errors.New("rate limited")         // 429
	ErrRegistry    = errors.New("registry trouble")     // 5xx, or an answer that makes no sense
	ErrUnreachable = errors.New("registry unreachable") // no connection, or one that broke
	ErrCertificate = errors.New("certificate refused")  // by us, for x509's reason
	ErrTimeout     = errors.New("registry timed out")   // connected, then silence
)

// RegistryError is a step with a registry that did not work. errors.Is finds its kind (ErrAuth and so on) and what
// caused it; an interrupted step is found by context.Canceled and has no kind.
type RegistryError struct {
	// Op says the step: "read manifest", "mount blob sha256:…".
	Op string
	// Ref is the reference or the repository the step was about.
	Ref string
	// Host is the registry's host and port, when known.
	Host string
	// Status is the HTTP status, 0 when there was no answer.
	Status int
	// Code is the distribution specification's error code, such as "MANIFEST_UNKNOWN"; may be empty.
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
		b.WriteString(plain(e.Err))
	}
	return b.String()
}

// answer is the server's own words, with the status, on one line and not endless.
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

// Unwrap gives the kind and the cause.
func (e *RegistryError) Unwrap() []error {
	if e.Kind == nil {
		return []error{e.Err}
	}
	return []error{e.Kind, e.Err}
}

// OneLine keeps what a server says from writing control characters or pages to a terminal.
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

// plain words an error without the URL that net/http puts around it: a redirected URL holds a signature.
//
// A registry on this machine is tried by TLS and then plainly, and both errors come joined: silence or a broken
// connection says more than "server gave HTTP response to HTTPS client".
func plain(err error) string {
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

// RegistryFailure wraps err as a *RegistryError; nil stays nil, and what is one already stays as it is.
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
	case errors.As(err, &cert): // what plain HTTP came to after it says nothing
		e.Kind = ErrCertificate
	case errors.As(err, &te):
		e.Status, e.Kind = te.StatusCode, kindOf(te.StatusCode)
		if len(te.Errors) > 0 {
			e.Code = string(te.Errors[0].Code)
		}
	case errors.As(err, new(redirectError)):
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

// isNetwork reports whether err kept a request from being answered: no route, no name, a certificate not trusted.
func isNetwork(err error) bool {
	var op *net.OpError
	var ue *url.Error
	return errors.As(err, &op) || errors.As(err, &ue) || IsCut(err)
}

// IsCut reports whether err is a connection that ended in the middle.
func IsCut(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, net.ErrClosed)
}

// idleError is a connection that said nothing for too long.
type idleError struct {
	host, step string
	after      time.Duration
}

func (e *idleError) Error() string {
	return fmt.Sprintf("%s sent nothing for %s at %s", e.host, e.after, e.step)
}

// PlatformError tells that a base lacks a platform.
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
		return fmt.Sprintf("%s has no platform %s: it has no image at all", e.Ref, e.Want)
	}
	return fmt.Sprintf("%s has no platform %s: it has %s", e.Ref, e.Want, strings.Join(have, ", "))
}
