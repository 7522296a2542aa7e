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

// The following methods serve the management API.
var (
	_ admin.Hub     = (*Hub)(nil)
	_ admin.Careful = (*Hub)(nil)
)

// Servers returns the status of all servers, in the order of the file.
func (h *Hub) Servers() []upstream.Status {
	var list []upstream.Status
	for _, s := range h.listServers() {
		list = append(list, s.up.Status())
	}
	return list
}

// Server returns the status of one server.
func (h *Hub) Server(name string) (upstream.Status, bool) {
	s, ok := h.findServer(name)
	if !ok {
		return upstream.Status{}, false
	}
	return s.up.Status(), true
}

// Log returns the last output of a server; nil if none has that name.
func (h *Hub) Log(name string) []byte {
	if s, ok := h.findServer(name); ok {
		return s.up.Log()
	}
	return nil
}

func (h *Hub) findOpen(name string) (*server, error) {
	h.mu.Lock()
	closed := h.closed
	h.mu.Unlock()
	if closed {
		return nil, errors.New("the hub is ending")
	}
	s, ok := h.findServer(name)
	if !ok {
		return nil, fmt.Errorf("there is no server %q in %s", name, h.opts.Config)
	}
	return s, nil
}

// Start starts one server.
func (h *Hub) Start(name string) error {
	s, err := h.findOpen(name)
	if err != nil {
		return err
	}
	s.up.Start()
	return nil
}

// Stop ends one server until it is started again; its tools disappear from the list.
func (h *Hub) Stop(ctx context.Context, name string) error {
	s, err := h.findOpen(name)
	if err != nil {
		return err
	}
	return s.stopAll(ctx)
}

// Restart ends one server and starts it.
func (h *Hub) Restart(ctx context.Context, name string) error {
	s, err := h.findOpen(name)
	if err != nil {
		return err
	}
	return s.restartAll(ctx)
}

// AuditLog returns the log of calls, which Close closes.
func (h *Hub) AuditLog() *audit.Log { return h.record.log }

// Ready returns the reason why the hub can't serve everything, or nil.
func (h *Hub) Ready() error {
	errs := []error{h.record.log.Ready()}
	for _, s := range h.listServers() {
		if st := s.up.Status(); st.State != upstream.Running {
			errs = append(errs, fmt.Errorf("server %s is %s", st.Name, st.State))
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return errors.Join(append(errs, h.catalog.problems...)...)
}

// Warnings returns the policy's rules that match nothing.
func (h *Hub) Warnings() (errs []error) {
	h.mu.Lock()
	p := h.policy
	h.mu.Unlock()
	for _, name := range p.Servers() {
		if _, ok := h.findServer(name); !ok {
			errs = append(errs, fmt.Errorf("%s has rules for server %q, which %s does not have: correct the name or remove them", h.opts.Policy, name, h.opts.Config))
		}
	}
	return errs
}

// Tools returns the tools of all servers, including hidden ones.
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
