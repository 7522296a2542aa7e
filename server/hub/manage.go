package hub

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/hub/admin"
	"github.com/slimctl/slimctl/server/hub/upstream"
)

// What follows is for the management API.
var (
	_ admin.Hub     = (*Hub)(nil)
	_ admin.Careful = (*Hub)(nil)
)

// Servers tells the state of all, in the order of the file.
func (h *Hub) Servers() []upstream.Status {
	var list []upstream.Status
	for _, s := range h.all() {
		list = append(list, s.up.Status())
	}
	return list
}

// Server tells the state of one.
func (h *Hub) Server(name string) (upstream.Status, bool) {
	s, ok := h.find(name)
	if !ok {
		return upstream.Status{}, false
	}
	return s.up.Status(), true
}

// Log gives what a server wrote last; nil if there is none of that name.
func (h *Hub) Log(name string) []byte {
	if s, ok := h.find(name); ok {
		return s.up.Log()
	}
	return nil
}

func (h *Hub) must(name string) (*server, error) {
	h.mu.Lock()
	closed := h.closed
	h.mu.Unlock()
	if closed {
		return nil, errors.New("the hub is ending")
	}
	s, ok := h.find(name)
	if !ok {
		return nil, fmt.Errorf("there is no server %q in %s", name, h.opts.Config)
	}
	return s, nil
}

// Start starts one server.
func (h *Hub) Start(name string) error {
	s, err := h.must(name)
	if err != nil {
		return err
	}
	s.up.Start()
	return nil
}

// Stop ends one server until it is started again; its tools are not listed
// then.
func (h *Hub) Stop(ctx context.Context, name string) error {
	s, err := h.must(name)
	if err != nil {
		return err
	}
	return s.stop(ctx)
}

// Restart ends one server and starts it.
func (h *Hub) Restart(ctx context.Context, name string) error {
	s, err := h.must(name)
	if err != nil {
		return err
	}
	return s.restart(ctx)
}

// AuditLog gives the log of calls, which Close closes.
func (h *Hub) AuditLog() *audit.Log { return h.record.log }

// Ready says what keeps the hub from serving everything as it should.
func (h *Hub) Ready() error {
	errs := []error{h.record.log.Ready()}
	for _, s := range h.all() {
		if st := s.up.Status(); st.State != upstream.Running {
			errs = append(errs, fmt.Errorf("server %s is %s", st.Name, st.State))
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return errors.Join(append(errs, h.catalog.problems...)...)
}

// Warnings give the rules that hold for nothing.
func (h *Hub) Warnings() (errs []error) {
	h.mu.Lock()
	p := h.policy
	h.mu.Unlock()
	for _, name := range p.Servers() {
		if _, ok := h.find(name); !ok {
			errs = append(errs, fmt.Errorf("%s has rules for server %q, which %s does not have: they hold for nothing", h.opts.Policy, name, h.opts.Config))
		}
	}
	return errs
}

// Tools lists what the servers offer, also what the policy hides.
func (h *Hub) Tools() []admin.Tool {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []admin.Tool
	for _, alias := range slices.Sorted(maps.Keys(h.catalog.tools)) {
		t := h.catalog.tools[alias]
		list = append(list, admin.Tool{Name: t.alias, Server: t.server.config.Name, Description: t.tool.Description, Blocked: t.blocked})
	}
	return list
}
