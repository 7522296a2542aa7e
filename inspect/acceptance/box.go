package acceptance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/slimctl/slimctl/inspect/sandbox"
)

// box is a running image.
type box struct {
	*trial
	*sandbox.Sandbox
	address string // on this machine, forwarded to port 8080
	key     string
}

// port is the closed image's port.
const port = 8080

// start boots the image; it returns nil after a failure, which is a finding. publish has the form of sandbox.Settings.
func (t *trial) start(ctx context.Context, how string, env map[string]string, publish ...string) (*sandbox.Sandbox, error) {
	s := sandbox.Default()
	s.Publish, s.Env, s.Output, s.Network = publish, env, t.Artifacts, sandbox.NetworkNone
	if t.site != nil {
		s.Network = sandbox.NetworkEgress
	}
	s.CPUs = 0                               // nothing is measured
	s.Timeout = 4*t.Patience + 2*time.Minute // ends a forgotten container
	t.Log("%s: booting %s, %s", t.Expect.Platform, t.Image.Reference, how)
	sb, err := t.Runner.Start(ctx, t.Image, s)
	var start *sandbox.StartError
	if errors.As(err, &start) {
		t.addFinding("run-start", how, "the image can't be started: %s", quote(err.Error()))
		return nil, nil
	}
	return sb, err
}

// boot starts the image, waits until it is healthy, calls try, and ends it.
func (t *trial) boot(ctx context.Context, how string, env map[string]string, try func(context.Context, *box) error) (err error) {
	sb, err := t.start(ctx, how, env, fmt.Sprintf("127.0.0.1::%d", port))
	if err != nil {
		return t.endsAtOnce(ctx, how, env, err)
	}
	if sb == nil {
		return nil
	}
	b := &box{trial: t, Sandbox: sb, key: t.key}
	if published := sb.Published(); len(published) == 1 {
		b.address = published[0].Host.String()
		if b.healthy(ctx, how) {
			err = try(ctx, b)
		}
	} else {
		err = fmt.Errorf("port %d of the container could not be published", port)
	}
	b.end(context.WithoutCancel(ctx), how)
	b.executed()
	b.observe()
	return errors.Join(err, context.Cause(ctx))
}

// endsAtOnce reports whether an image ends before its port can be published: that is a finding, not the error cause.
func (t *trial) endsAtOnce(ctx context.Context, how string, env map[string]string, cause error) error {
	sb, err := t.start(ctx, how, env)
	if err != nil || sb == nil {
		return err
	}
	b := &box{trial: t, Sandbox: sb}
	if !b.ended(ctx, settle) {
		_, err = sb.Stop(context.WithoutCancel(ctx))
		return errors.Join(cause, err)
	}
	status, err := sb.Wait(ctx)
	t.addFinding("run-start", how, "the container ends at once, with exit status %d: %s", status.ExitCode, quote(string(tail(b.Logs()))))
	return err
}

// end stops the container.
func (b *box) end(ctx context.Context, how string) {
	status, err := b.Stop(ctx)
	switch {
	case err != nil:
		b.addFinding("run-stop", how, "what the container left behind can't be removed: %s", quote(err.Error()))
	case status.TimedOut:
		b.addFinding("run-stop", how, "the container did not end before its timeout")
	case status.ExitCode != 0:
		b.addFinding("run-stop", how, "after the stop signal the container ended with exit status %d", status.ExitCode)
	}
}

// healthy waits until the image's own health check passes.
func (b *box) healthy(ctx context.Context, how string) bool {
	wait, cancel := context.WithTimeout(ctx, b.Patience)
	defer cancel()
	err := b.AwaitHealthy(wait)
	if err != nil && ctx.Err() == nil {
		b.addFinding("run-start", how, "%s", err)
	}
	if said := b.Evidence().Health; strings.Contains(said, "cages: no ") {
		b.unchecked("the image with all parts of its cages, since this machine lacks some: %s", quote(said))
	}
	return err == nil
}

// ended waits for the container's end, and reports whether it came.
func (b *box) ended(ctx context.Context, patience time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := b.Wait(ctx)
	return ctx.Err() == nil || err == nil
}

func tail(text []byte) []byte { return text[max(0, len(text)-200):] }

// client returns an HTTP client for the image: without a proxy, without redirects, with limited answers.
func (b *box) client(header http.Header) *http.Client {
	return &http.Client{
		Timeout:       time.Minute, // twice what a call of the tool has
		Transport:     &bounded{header: header, next: &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
