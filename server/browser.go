package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/slimctl/slimctl/server/cdp"
	"github.com/slimctl/slimctl/server/policy"
	"github.com/slimctl/slimctl/server/process"
)

const (
	// nodeDeadline is the longest run of a 0.8 to 0.19 agent-browser: after 30 s
	// it sends the command again by itself, which could click twice.
	nodeDeadline = 28 * time.Second
	// pageTime bounds the look at a session's pages after a command, which
	// happens also when the call's own time is over.
	pageTime = 5 * time.Second
	// hostTime is how long a host that was found public is not resolved again
	// for the check of a page. (The proxy resolves for every connection.)
	hostTime = 30 * time.Second
	// maxChecked bounds the hosts that are remembered so.
	maxChecked = 1000
)

// browser runs admitted calls on the one Chromium, each session in a tab of
// its own BrowserContext: own cookies, every request through the egress proxy.
type browser struct {
	cli       *cli
	st        *state
	sessions  *sessions
	artifacts *artifacts
	network   policy.Network
	proxy     string

	dialing turn
	conn    *cdp.Browser // nil or ended: dial again
}

// run runs one call in its session's turn.
func (b *browser) run(ctx context.Context, p *policy.Policy, c Call) Result {
	res := Result{SessionID: c.SessionID}
	if c.missing != nil {
		return res.failed(exitNoRun, c.missing)
	}
	ses := c.ses
	if r := b.sessions.enter(ctx, ses); r != nil {
		return res.refuse(r)
	}
	defer b.sessions.leave(ses)
	if c.after != nil {
		select {
		case <-c.after:
		case <-ctx.Done():
			return res.refuse(late())
		}
	}
	if c.Command.Name == "close" {
		if err := b.end(ses); err != nil {
			return res.failed(exitUnavailable, err)
		}
		res.Stdout = "{\"closed\":true}\n"
		return res
	}
	if c.Generation == policy.Node {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, nodeDeadline)
		defer cancel()
	}
	if res, ok := b.ready(ctx, p, ses, c, res); !ok {
		if ctx.Err() != nil && res.Refusal == nil {
			return res.refuse(unready())
		}
		return res
	}
	return b.command(ctx, p, ses, c, res)
}

func (r Result) failed(code int, err error) Result {
	r.ExitCode, r.Stdout, r.Stderr = code, "", err.Error()+"\n"
	return r
}

// command runs agent-browser and looks at where the session's pages are then.
func (b *browser) command(ctx context.Context, p *policy.Policy, ses *session, c Call, res Result) Result {
	loaded := func(context.Context) cdp.Navigation { return cdp.Navigation{} }
	if c.Command.Name == "open" {
		var err error
		if loaded, err = ses.tab.WatchNavigation(ctx, c.Command.Args[0]); err != nil {
			_ = b.end(ses) // err tells more
			return res.failed(exitUnavailable, err)
		}
	}
	before := ses.tab.Pages()
	ses.tab.Opened() // by the page itself, before this command
	out, err := b.agentBrowser(ctx, ses, c.Run, ses.daemon == nil)
	for range snapshotTries - 1 {
		if err != nil || c.Command.Name != "snapshot" || !pageMovedOn(out) || ctx.Err() != nil {
			break
		}
		out, err = b.agentBrowser(ctx, ses, c.Run, ses.daemon == nil)
	}
	if err != nil {
		return res.failed(exitNoRun, err)
	}
	res.ran = true
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), pageTime)
	defer cancel()
	lost := b.lost(ses, out)
	if lost {
		b.endDaemon(ses)
	}
	switch {
	case out.Killed:
		return res.refuse(b.hung(within, ses, killed(ctx, out)))
	case lost && out.ExitCode == 0: // by a daemon that came up meanwhile
		return res.failed(exitFailed, errors.New("agent-browser's daemon ended while the command ran, so what became of it is not known: take a snapshot before going on"))
	}
	if err := ses.tab.Sync(within); err != nil {
		_ = b.end(ses) // the answer says so
		return res.failed(exitUnavailable, errors.New("where the page is now cannot be checked, because Chromium has ended or hangs; so nothing of it is shown, and the session was ended: open a page again"))
	}
	nav := loaded(within)
	if r := b.pages(within, p, ses); r != nil {
		return res.refuse(r)
	}
	if r := b.unreachable(ctx, p, nav); r != nil {
		return res.refuse(r)
	}
	if name := c.Command.Name; name == "get" || name == "snapshot" && bytes.Contains(out.Stdout, []byte("textbox")) { // what stands in fields
		if res.secrets, err = ses.tab.Passwords(within); err != nil {
			return res.failed(exitUnavailable, fmt.Errorf("%w; so nothing of it is shown: try again", err))
		}
	}
	res.raw, res.status, res.newTabs, res.dialogs = &out, nav.Status, newTabs(before, ses.tab.Pages(), ses.tab.Opened()), ses.tab.Dialogs()
	return res
}

// snapshotTries is how often a snapshot is taken of a page that moves on meanwhile, as after a click on a link.
const snapshotTries = 3

// pageMovedOn reports whether a command failed because its page navigated, by the text of Chromium's error.
func pageMovedOn(out process.Result) bool {
	return out.ExitCode != 0 && (bytes.Contains(out.Stdout, []byte("Inspected target navigated or closed")) || bytes.Contains(out.Stdout, []byte("Not attached to an active page")))
}

// daemonTries is how often agent-browser is run when its daemon does not start.
const daemonTries = 3

// agentBrowser runs one command line in a session. When it has to start the
// daemon it waits 5 s for that, which a busy machine, or one that has just
// booted, may not do in time: nothing was done then. It is run again when the
// daemon is there; one that has ended is started again.
func (b *browser) agentBrowser(ctx context.Context, ses *session, argv []string, daemon bool) (out process.Result, err error) {
	for range daemonTries {
		out, err = b.cli.run(ctx, ses.name, argv, daemon)
		if err != nil || !daemon || out.Killed || out.ExitCode == 0 {
			break
		}
		said := normalise{}.OnAfter(ctx, Call{}, Result{raw: &out}).Stderr
		if !strings.HasPrefix(said, "Daemon failed to start") || ctx.Err() != nil {
			break
		}
		if !b.comesUp(ctx, ses) {
			b.endDaemon(ses)
		}
	}
	return out, err
}

// comesUp waits for a daemon that is still starting. It reports whether it
// takes commands now.
func (b *browser) comesUp(ctx context.Context, ses *session) bool {
	for {
		switch {
		case b.st.listens(ses.name):
			return true
		case !process.Alive(runMark(b.st.run), sessionMark(ses.name)):
			return b.st.listens(ses.name)
		}
		select {
		case <-time.After(comingUp):
		case <-ctx.Done():
			return false
		}
	}
}

// comingUp is the interval between looks at a daemon that is starting.
const comingUp = 50 * time.Millisecond

// lost tells whether the daemon must be ended after a run: it may still be at
// it, deaf to the next command; come up after the command line has given up on
// it; or have ended, and then another one may have come up with its port open.
func (b *browser) lost(ses *session, out process.Result) bool {
	return out.Killed || ses.daemon != nil && process.Ended(ses.daemon) || out.ExitCode != 0 && !b.st.hasDaemon(ses.name)
}

// hung is for a command that took too long: a page that does not answer any
// more would keep the next one waiting too, so its session ends.
func (b *browser) hung(ctx context.Context, ses *session, r *policy.Refusal) *policy.Refusal {
	if !ses.tab.Alive() || !ses.tab.Responds(ctx) {
		_ = b.end(ses) // the answer says so
		r.Message = "the page hung, so the session was ended: open a page again"
	}
	return r
}

func killed(ctx context.Context, out process.Result) *policy.Refusal {
	switch {
	case out.TooMuch:
		return &policy.Refusal{
			Code: policy.BudgetExceeded, Rule: "output.size",
			Message: "agent-browser printed too much and was ended; ask for less (snapshot -i -c -d 3)",
		}
	case errors.Is(ctx.Err(), context.Canceled): // nobody reads it but the audit log
		return &policy.Refusal{Code: policy.Timeout, Rule: "call.cancelled", Message: "the client cancelled the call, and the command was ended"}
	}
	return &policy.Refusal{
		Code: policy.Timeout, Rule: "timeout.run", Retryable: true,
		Message: "the command did not finish in time and was ended; the page may have changed: take a snapshot before going on",
	}
}

// unready is for a session that could not be made ready in time.
func unready() *policy.Refusal {
	return &policy.Refusal{
		Code: policy.Timeout, Rule: "timeout.ready", Retryable: true,
		Message: "the session was not ready in time, so the command was not run: send the call again, or close the session",
	}
}

// ready makes sure that the session has a live tab on an allowed page and,
// before its first command, a daemon without an open port.
func (b *browser) ready(ctx context.Context, p *policy.Policy, ses *session, c Call, res Result) (Result, bool) {
	if ses.tab != nil && !ses.tab.Alive() {
		_ = b.end(ses) // it is gone already
	}
	if ses.tab == nil && c.Command.Name != "open" {
		return res.failed(exitFailed, errors.New("the session has no page: open one (a session also ends when it was not used for some time, when its page closed itself and when Chromium was restarted)")), false
	}
	if ses.tab == nil {
		if err := b.openTab(ctx, ses, c.Generation); err != nil {
			_ = b.end(ses) // err tells more
			var r *policy.Refusal
			if errors.As(err, &r) {
				return res.refuse(r), false
			}
			return res.failed(exitUnavailable, err), false
		}
	}
	if c.Generation == policy.Node { // some of its versions also turn to a page that was just opened
		if err := ses.chromium.CloseOthers(ctx, ses.tab); err != nil {
			_ = b.end(ses) // err tells more
			return res.failed(exitUnavailable, err), false
		}
	}
	if r := b.pages(ctx, p, ses); r != nil {
		return res.refuse(r), false
	}
	if c.Generation == policy.Native && (ses.daemon == nil || process.Ended(ses.daemon)) {
		if res, ok := b.start(ctx, ses, res); !ok {
			return res, false
		}
	}
	if c.file != "" {
		if err := b.artifacts.prepare(fileTmp(c)); err != nil {
			return res.failed(exitProtocol, err), false
		}
	}
	if c.Command.Name == "screenshot" || len(ses.tab.Pages()) > 1 { // a hidden tab paints late or never, and clicks wait for it
		if err := ses.tab.Front(ctx); err != nil {
			return res.failed(exitUnavailable, err), false
		}
	}
	return res, true
}

// openTab gives the session its tab. An older agent-browser takes the first
// tab that it finds, whoever's it is: so there must be no other, nor another
// browser-shell that has one.
func (b *browser) openTab(ctx context.Context, ses *session, gen policy.Generation) (err error) {
	if gen == policy.Node {
		if ses.alone, err = b.st.alone(); err != nil {
			return overBudget("sessions.count", time.Second, "another browser-shell has a session, and this version of agent-browser can have one only; try again when it is closed")
		}
	}
	if ses.chromium, err = b.chromium(ctx); err != nil {
		return err
	}
	if ses.tab, err = ses.chromium.NewTab(ctx, b.proxy); err != nil {
		return err
	}
	clear(ses.checked)
	if gen == policy.Node {
		return nil
	}
	return b.st.writeTarget(ses.name, ses.tab.TargetFile())
}

// chromium gives the connection, a new one if the last has ended.
func (b *browser) chromium(ctx context.Context) (*cdp.Browser, error) {
	if err := b.dialing.take(ctx); err != nil {
		return nil, err
	}
	defer b.dialing.give()
	if b.conn != nil {
		select {
		case <-b.conn.Done():
		default:
			return b.conn, nil
		}
	}
	var err error
	b.conn, err = whenUp(ctx, func(ctx context.Context) (*cdp.Browser, error) { return cdp.Dial(ctx, b.cli.conf.CDPPort) })
	return b.conn, err
}

// startTime bounds the wait for a Chromium that is starting: the image has just booted, or Chromium has ended and
// supervisord starts it again.
const startTime = 15 * time.Second

// whenUp dials until something listens, for half of the call's time and startTime at most. Every error but a refused
// connection is returned at once.
func whenUp(ctx context.Context, dial func(context.Context) (*cdp.Browser, error)) (*cdp.Browser, error) {
	wait := startTime
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)/2)
	}
	over := time.After(wait)
	for {
		conn, err := dial(ctx)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return conn, err
		}
		select {
		case <-time.After(comingUp):
		case <-over:
			return nil, err
		case <-ctx.Done():
			return nil, err
		}
	}
}

// start starts a native daemon with its HTTP port closed: anyone here, and any
// page, could otherwise talk to it. Each daemon is held, since one that comes
// up in its place has the port open.
func (b *browser) start(ctx context.Context, ses *session, res Result) (Result, bool) {
	b.endDaemon(ses)
	argv := append(forced(ses.name, b.cli.conf.CDPPort, policy.Native), "stream", "disable")
	out, err := b.agentBrowser(ctx, ses, argv, true)
	if err == nil && !out.Killed {
		first := normalise{}.OnAfter(ctx, Call{}, Result{raw: &out})
		if first.ExitCode == 0 {
			ses.daemon, err = b.st.daemon(ses.name)
		} else {
			err = errors.New(first.Stderr)
		}
		if err == nil {
			return res, true
		}
	}
	b.endDaemon(ses) // the next call starts over, with the port closed
	if out.Killed {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), pageTime)
		defer cancel()
		return res.refuse(b.hung(within, ses, unready())), false
	}
	return res.failed(exitFailed, fmt.Errorf("the session could not be started: %w", err)), false
}

func (b *browser) endDaemon(ses *session) {
	b.st.endDaemon(ses.name)
	if ses.daemon != nil {
		_ = ses.daemon.Release()
		ses.daemon = nil
	}
}

// pages checks every page of the session, and every place where one was since
// the last check: it may have been read there. The tab leaves the ones that
// may not be read.
func (b *browser) pages(ctx context.Context, p *policy.Policy, ses *session) *policy.Refusal {
	var refusal *policy.Refusal
	for _, page := range ses.tab.Seen() {
		if r := b.page(ctx, p, ses, page.URL); r != nil {
			refusal = r
		}
	}
	for _, page := range ses.tab.Pages() {
		r := b.page(ctx, p, ses, page.URL)
		if r == nil {
			continue
		}
		refusal = r
		if err := ses.tab.Leave(ctx, page.ID); err != nil {
			_ = b.end(ses) // the page is gone with it
			break
		}
	}
	if refusal != nil && refusal.Code == policy.PolicyBlocked {
		refusal.Message = "the page went where it may not go and was left, nothing of it is shown: " + refusal.Message
	}
	return refusal
}

func (b *browser) page(ctx context.Context, p *policy.Policy, ses *session, href string) *policy.Refusal {
	u, r := p.CheckPage(href)
	if r != nil || u.Host == "" || time.Since(ses.checked[u.Host]) < hostTime {
		return r
	}
	if _, r = p.NetworkFor(b.network, u.Host).Lookup(ctx, u.Host); r != nil {
		return r
	}
	if len(ses.checked) >= maxChecked {
		clear(ses.checked)
	}
	ses.checked[u.Host] = time.Now()
	return nil
}

// end closes a session: its daemon, its tab with all cookies, its files. It is
// an error if Chromium does not take the order; it drops the tab then as soon
// as it is heard of again.
func (b *browser) end(ses *session) error {
	b.endDaemon(ses)
	b.st.forget(ses.name)
	b.artifacts.tidy(ses.name)
	var err error
	if ses.tab != nil {
		ctx, cancel := context.WithTimeout(context.Background(), pageTime)
		defer cancel()
		err = ses.tab.Close(ctx)
	}
	if ses.alone != nil {
		ses.alone.Close()
	}
	ses.tab, ses.alone = nil, nil
	return err
}

// reap ends the sessions that nobody has used for a time, until ctx ends.
func (b *browser) reap(ctx context.Context, idle func() time.Duration) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(idle()/10, time.Second)):
		}
		for _, ses := range b.sessions.idle(time.Now().Add(-idle())) {
			_ = b.end(ses) // nobody is there to be told
			b.sessions.leave(ses)
			b.sessions.release(ses, false, 0)
		}
	}
}

// evict ends a session that was taken from its owner, after the call that runs in it.
func (b *browser) evict(ses *session) {
	defer close(ses.gone)
	_ = ses.turn.take(context.Background()) // it has no end
	_ = b.end(ses)                          // the owner's next call is told
	b.sessions.leave(ses)
	b.sessions.release(ses, false, 0)
}

// close ends everything; no call runs any more.
func (b *browser) close() {
	if b.conn != nil {
		b.conn.Close()
	}
}
