package server

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slimctl/slimctl/server/cdp"
	"github.com/slimctl/slimctl/server/output"
	"github.com/slimctl/slimctl/server/policy"
	"github.com/slimctl/slimctl/server/process"
)

const (
	// nodeDeadline limits a run of agent-browser 0.8 to 0.19: after 30 s it sends the command again by itself, which
	// could click twice.
	nodeDeadline = 28 * time.Second
	// pageTime limits the check of a session's pages after a command. The check also runs when the call's own time is
	// over. A busy machine's Chromium needs seconds for an answer.
	pageTime = 10 * time.Second
)

// browser runs admitted calls on the one Chromium. Each session has a tab in a BrowserContext of its own: separate
// cookies, and every request through the egress proxy.
type browser struct {
	cli       *cli
	st        *state
	sessions  *sessions
	artifacts *artifacts
	network   policy.Network
	chromium  *chromium
	starts    admission
}

// runCall runs one call when it is its session's turn.
func (b *browser) runCall(ctx context.Context, p *policy.Policy, c Call) Result {
	res := Result{SessionID: c.SessionID}
	if c.missing != nil {
		return res.withFailure(exitNoRun, c.missing)
	}
	ses := c.ses
	if r := b.sessions.enterTurn(ctx, ses); r != nil {
		return res.withRefusal(r)
	}
	defer b.sessions.leaveTurn(ses)
	if c.after != nil {
		select {
		case <-c.after:
		case <-ctx.Done():
			return res.withRefusal(lateRefusal())
		}
	}
	if c.Command.Name == "close" {
		if err := b.endSession(ses); err != nil {
			return res.withFailure(exitUnavailable, err)
		}
		res.Stdout = "{\"closed\":true}\n"
		return res
	}
	if res, ok := b.prepareSession(ctx, p, ses, c, res); !ok {
		if ctx.Err() != nil && res.Refusal == nil {
			return res.withRefusal(unreadyRefusal())
		}
		return res
	}
	return b.runCommand(ctx, p, ses, c, res)
}

func (r Result) withFailure(code int, err error) Result {
	r.ExitCode, r.Stdout, r.Stderr = code, "", err.Error()+"\n"
	return r
}

// runCommand runs agent-browser and then checks the addresses of the session's pages.
func (b *browser) runCommand(ctx context.Context, p *policy.Policy, ses *session, c Call, res Result) Result {
	loaded := func(context.Context) cdp.Navigation { return cdp.Navigation{} }
	if c.Command.Name == "open" {
		var err error
		if loaded, err = ses.tab.WatchNavigation(ctx, c.Command.Args[0]); err != nil {
			return b.giveUp(ctx, ses, res, err)
		}
	}
	if c.Generation == policy.Node {
		if ref := oldReference(ses, c.Command); ref != "" {
			return res.withFailure(exitFailed, errors.New(ref+output.NotInSnapshot))
		}
	}
	before := ses.tab.Pages()
	ses.tab.Opened() // discards pages opened before this command
	out, err := b.runLines(ctx, ses, c)
	if err != nil {
		return res.withFailure(exitNoRun, err)
	}
	res.ran = true
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), pageTime)
	defer cancel()
	lost := b.daemonLost(ses, out)
	if lost {
		b.endDaemon(ses)
	}
	waited := awaits(c.Command) && timedOut(out)
	switch {
	case out.Killed:
		r := b.endHung(within, ses, killedRefusal(ctx, out))
		if waited = awaits(c.Command) && r.Rule == "timeout.run" && ses.tab != nil; !waited {
			return res.withRefusal(r)
		}
	case lost && out.ExitCode == 0: // by a daemon that started after the command line gave up
		return res.withFailure(exitFailed, errors.New("agent-browser's daemon ended while the command ran, so its effect is unknown: take a snapshot before going on"))
	}
	if err := ses.tab.Sync(within); err != nil {
		if ses.tab.Alive() {
			return res.withFailure(exitUnavailable, errors.New("the page's address could not be checked in time, so the output is withheld: take a snapshot before going on"))
		}
		_ = b.endSession(ses) // the refusal reports it
		return res.withFailure(exitUnavailable, errors.New("the page's address cannot be checked, because Chromium has ended; the output is withheld and the session was ended: open a page again"))
	}
	nav := loaded(within)
	if r, at := b.checkPages(within, p, ses); r != nil {
		return res.withRefusal(r).about(at)
	}
	_, failed := ses.tab.Document()
	if r := b.explainUnreachable(ctx, nav, failed); r != nil {
		b.leaveErrorPage(ctx, ses)
		return res.withRefusal(r).about(cmp.Or(nav.URL, failed))
	}
	if waited {
		return res.withRefusal(waitedRefusal(ses, c))
	}
	if name := c.Command.Name; name == "get" || name == "snapshot" && bytes.Contains(out.Stdout, []byte("textbox")) { // prints the content of fields
		if res.secrets, err = ses.tab.Passwords(within); err != nil {
			return res.withFailure(exitUnavailable, fmt.Errorf("%w; the output could contain passwords and is withheld: try again", err))
		}
	}
	res.raw, res.status, res.newTabs, res.dialogs = &out, nav.Status, findNewTabs(before, ses.tab.Pages(), ses.tab.Opened()), ses.tab.Dialogs()
	return res
}

// snapshotTries is the number of attempts at a snapshot of a page that moves on meanwhile, as after a click on a link.
const snapshotTries = 3

// pageMovedOn reports whether a command failed because its page navigated or showed a dialog, which Tab closes. It compares
// the texts of Chromium's errors and agent-browser's.
func pageMovedOn(out process.Result) bool {
	return out.ExitCode != 0 && slices.ContainsFunc([]string{
		"Inspected target navigated or closed", "Not attached to an active page", "dialog is blocking the page",
	}, func(text string) bool { return bytes.Contains(out.Stdout, []byte(text)) })
}

// daemonTries is the number of runs of agent-browser while its daemon does not start.
const daemonTries = 3

// agentBrowser runs one command line in a session. agent-browser waits only 5 s for a new daemon and connects 5 times,
// which is too short on a busy or newly booted machine; it has done nothing then. agentBrowser runs it again once the
// daemon listens, or starts a daemon that has ended again.
func (b *browser) agentBrowser(ctx context.Context, ses *session, argv []string, daemon bool) (out process.Result, err error) {
	began := time.Now()
	for range daemonTries {
		out, err = b.cli.runLine(ctx, ses.name, argv, daemon)
		if err != nil || !daemon || out.Killed || out.ExitCode == 0 {
			break
		}
		said := normalise{}.OnAfter(ctx, Call{}, Result{raw: &out}).Stderr
		var opened time.Time
		if strings.HasPrefix(said, "Daemon failed to start") {
			opened = began // an older socket is that of a daemon that was killed
		} else if !strings.HasPrefix(said, "Failed to connect: ") {
			break
		}
		if ctx.Err() != nil {
			break
		}
		if !b.awaitDaemon(ctx, ses, opened) {
			b.endDaemon(ses)
		}
	}
	return out, err
}

// awaitDaemon waits for a daemon that is still starting. It reports whether the daemon has opened its socket since the
// given time, and so accepts commands.
func (b *browser) awaitDaemon(ctx context.Context, ses *session, since time.Time) bool {
	for {
		switch {
		case b.st.listens(ses.name, since):
			return true
		case !process.Alive(runMark(b.st.run), sessionMark(ses.name)):
			return b.st.listens(ses.name, since)
		}
		select {
		case <-time.After(comingUp):
		case <-ctx.Done():
			return false
		}
	}
}

// comingUp is the interval between checks of a starting daemon.
const comingUp = 50 * time.Millisecond

// daemonLost reports whether the daemon must be ended after a run. It may still execute the command and ignore the next
// one, or start after the command line has given up. It may also have ended and been replaced by a daemon with an open
// port.
func (b *browser) daemonLost(ses *session, out process.Result) bool {
	return out.Killed || ses.daemon != nil && process.Ended(ses.daemon) || out.ExitCode != 0 && !b.st.hasDaemon(ses.name)
}

// giveUp returns the failure of a command that has not run. It ends the session if its tab is gone; one that is only late
// stays.
func (b *browser) giveUp(ctx context.Context, ses *session, res Result, err error) Result {
	if ctx.Err() != nil && ses.tab.Alive() {
		return res.withRefusal(b.endHung(context.WithoutCancel(ctx), ses, unreadyRefusal()))
	}
	_ = b.endSession(ses) // err is the cause
	return res.withFailure(exitUnavailable, err)
}

// endHung ends the session of a command that took too long if the page no longer answers although others do: the next
// command would wait, too.
func (b *browser) endHung(ctx context.Context, ses *session, r *policy.Refusal) *policy.Refusal {
	if !ses.tab.Alive() || ses.tab.Hangs(ctx) {
		_ = b.endSession(ses) // the refusal reports it
		r.Message = "the page hung, so the session was ended: open a page again"
	}
	return r
}

func killedRefusal(ctx context.Context, out process.Result) *policy.Refusal {
	switch {
	case out.TooMuch:
		return &policy.Refusal{
			Code: policy.BudgetExceeded, Rule: "output.size",
			Message: "agent-browser printed too much and was ended; ask for less (snapshot -i -c -d 3)",
		}
	case errors.Is(ctx.Err(), context.Canceled): // read by the audit log alone
		return &policy.Refusal{Code: policy.Timeout, Rule: "call.cancelled", Message: "the client cancelled the call, and the command was ended"}
	}
	return &policy.Refusal{
		Code: policy.Timeout, Rule: "timeout.run", Retryable: true,
		Message: "the command did not finish in time and was ended; the page may have changed: take a snapshot before going on",
	}
}

// unreadyRefusal returns the refusal for a session that was not ready in time.
func unreadyRefusal() *policy.Refusal {
	return &policy.Refusal{
		Code: policy.Timeout, Rule: "timeout.ready", Retryable: true,
		Message: "the session was not ready in time, so the command was not run: send the call again, or close the session",
	}
}

// prepareSession makes sure that the session has a live tab on an allowed page and, before its first command, a daemon
// with a closed port.
func (b *browser) prepareSession(ctx context.Context, p *policy.Policy, ses *session, c Call, res Result) (Result, bool) {
	if ses.tab != nil && !ses.tab.Alive() {
		_ = b.endSession(ses) // the tab is gone already
	}
	if ses.tab == nil && c.Command.Name != "open" {
		return res.withFailure(exitFailed, errors.New("the session has no page: open one (a session also ends when it was not used for some time, when its page closed itself and when Chromium was restarted)")), false
	}
	if ses.tab == nil {
		leave, r := b.starts.enter(ctx, c.Origin.owner())
		if r != nil {
			return res.withRefusal(r), false
		}
		defer leave()
		if err := b.openTab(ctx, ses, c.Generation); err != nil {
			_ = b.endSession(ses) // err is the cause
			var r *policy.Refusal
			if errors.As(err, &r) {
				return res.withRefusal(r), false
			}
			return res.withFailure(exitUnavailable, err), false
		}
	}
	if c.Generation == policy.Node { // some of its versions also switch to a page that was just opened
		if err := ses.chromium.CloseOthers(ctx, ses.tab); err != nil {
			return b.giveUp(ctx, ses, res, err), false
		}
	}
	if r, at := b.checkPages(ctx, p, ses); r != nil {
		return res.withRefusal(r).about(at), false
	}
	// A page often fails after the click that requested it has been answered.
	if _, failed := ses.tab.Document(); failed != "" && c.Command.Name != "open" {
		b.leaveErrorPage(ctx, ses)
		return res.withRefusal(b.explainUnreachable(ctx, cdp.Navigation{}, failed)).about(failed), false
	}
	if c.Generation == policy.Native && (ses.daemon == nil || process.Ended(ses.daemon)) {
		if res, ok := b.startDaemon(ctx, ses, res); !ok {
			return res, false
		}
	}
	if c.file != "" {
		if err := b.artifacts.prepareFile(fileTmp(c)); err != nil {
			return res.withFailure(exitProtocol, err), false
		}
	}
	if c.Command.Name == "screenshot" || len(ses.tab.Pages()) > 1 { // a hidden tab paints late or never, and clicks wait for a paint
		if err := ses.tab.Front(ctx); err != nil {
			return res.withFailure(exitUnavailable, err), false
		}
	}
	return res, true
}

// openTab opens the session's tab. An older agent-browser uses the first tab that it finds, whoever owns it. So there
// must be no other tab, and no other browser-shell with a tab.
func (b *browser) openTab(ctx context.Context, ses *session, gen policy.Generation) (err error) {
	if gen == policy.Node {
		if ses.alone, err = b.st.lockAlone(); err != nil {
			return overBudget("sessions.count", time.Second, "another browser-shell has a session, and this version of agent-browser can have one only; try again when it is closed")
		}
	}
	if ses.chromium, ses.tab, err = b.chromium.newTab(ctx); err != nil {
		return err
	}
	if gen == policy.Node {
		return nil
	}
	return b.st.writeTarget(ses.name, ses.tab.TargetFile())
}

// enterProbe admits a probe of Chromium. agent-browser 0.8 to 0.19 would use its page, so there must be no such session.
func (b *browser) enterProbe(ctx context.Context) (leave func(), ok bool) {
	leave, r := b.starts.enter(ctx, "")
	if r != nil {
		return nil, false
	}
	alone, err := b.st.lockAlone()
	if err != nil {
		leave()
		return nil, false
	}
	_ = alone.Close()
	return leave, true
}

// startDaemon starts a native daemon and closes its HTTP port, which is otherwise open to every local program and page.
// It keeps each daemon's process handle, since a daemon that replaces it has an open port.
func (b *browser) startDaemon(ctx context.Context, ses *session, res Result) (Result, bool) {
	b.endDaemon(ses)
	argv := append(forcedOptions(ses.name, b.cli.conf.CDPPort, policy.Native), "stream", "disable")
	out, err := b.agentBrowser(ctx, ses, argv, true)
	// It attaches to all tabs, and another session's may close before or after: "No target with given id found", "Session with given id not found".
	for tries := 1; tries < daemonTries && err == nil && bytes.Contains(out.Stdout, []byte("CDP error (")); tries++ {
		b.endDaemon(ses)
		out, err = b.agentBrowser(ctx, ses, argv, true)
	}
	if err == nil && !out.Killed {
		first := normalise{}.OnAfter(ctx, Call{}, Result{raw: &out})
		if first.ExitCode == 0 {
			ses.daemon, err = b.st.openDaemon(ses.name)
		} else {
			err = errors.New(first.Stderr)
		}
		if err == nil {
			return res, true
		}
	}
	b.endDaemon(ses) // the next call starts again, with the port closed
	if out.Killed {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), pageTime)
		defer cancel()
		return res.withRefusal(b.endHung(within, ses, unreadyRefusal())), false
	}
	return res.withFailure(exitFailed, fmt.Errorf("the session could not be started: %w", err)), false
}

func (b *browser) endDaemon(ses *session) {
	b.st.endDaemon(ses.name)
	if ses.daemon != nil {
		_ = ses.daemon.Release()
		ses.daemon = nil
	}
	if ses.chromium != nil { // the daemon had attached to all tabs
		ses.chromium.DenySecurityKeys()
	}
}

// checkPages checks the address of every page of the session by its text, and leaves forbidden pages: what a person opens
// at the desktop is no agent's business. (The proxy checks what is connected to, and Chromium's policy the rest.) It also
// returns the refused address.
func (b *browser) checkPages(ctx context.Context, p *policy.Policy, ses *session) (refusal *policy.Refusal, at string) {
	for _, page := range ses.tab.Pages() {
		r := p.CheckPage(page.URL)
		if r == nil {
			continue
		}
		refusal, at = r, page.URL
		if err := ses.tab.Leave(ctx, page.ID); err != nil {
			_ = b.endSession(ses) // the page is closed with it
			break
		}
	}
	if refusal != nil {
		refusal.Message = "the page went to an address that the policy blocks, and was left; its content is withheld: " + refusal.Message
	}
	return refusal, at
}

// leaveErrorPage sends the tab to about:blank: an agent must not read or operate Chromium's error page. If the tab cannot
// leave it, the session ends.
func (b *browser) leaveErrorPage(ctx context.Context, ses *session) {
	if ses.tab.LeaveError(context.WithoutCancel(ctx)) != nil {
		_ = b.endSession(ses) // the refusal reports the failed page
	}
}

// endSession closes a session: its daemon, its tab with all cookies, and its files. If Chromium does not execute the
// order in time, endSession returns an error, and Chromium closes the tab as soon as it answers again.
func (b *browser) endSession(ses *session) error {
	b.endDaemon(ses)
	b.st.removeTarget(ses.name)
	b.artifacts.removeEmpty(ses.name)
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

// endIdle ends sessions that have been idle for the time that idle returns, until ctx ends.
func (b *browser) endIdle(ctx context.Context, idle func() time.Duration) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(idle()/10, time.Second)):
		}
		for _, ses := range b.sessions.takeIdle(time.Now().Add(-idle())) {
			_ = b.endSession(ses) // nobody to report it to
			b.sessions.leaveTurn(ses)
			b.sessions.releaseCall(ses, false, 0)
		}
	}
}

// evictSession ends a session that was taken from its owner, after its running call.
func (b *browser) evictSession(ses *session) {
	defer close(ses.gone)
	_ = ses.turn.Acquire(context.Background(), 1) // Background never ends
	_ = b.endSession(ses)                         // the owner's next call reports it
	b.sessions.leaveTurn(ses)
	b.sessions.releaseCall(ses, false, 0)
}
