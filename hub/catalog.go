package hub

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	maxName    = 128      // of a tool, as clients see it (MCP 2025-11-25, server/tools)
	maxOffer   = 5000     // items of each of a server's lists
	maxChecked = 64 << 10 // bytes of a schema, and of arguments that are checked against it
)

// kinds is a set of lists.
type kinds int

const (
	toolKind kinds = 1 << iota
	promptKind
	resourceKind
	templateKind
)

// offer is everything that a server offers.
type offer struct {
	instructions string
	tools        []*mcp.Tool
	prompts      []*mcp.Prompt
	resources    []*mcp.Resource
	templates    []*mcp.ResourceTemplate
}

// readOffer reads a server's offer. It requests only lists that the server says it has.
func (s *server) readOffer(ctx context.Context, l *link) error {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	init := l.session.InitializeResult()
	o, has := offer{instructions: init.Instructions}, init.Capabilities
	var errs []error
	if has != nil && has.Tools != nil {
		for t, err := range l.session.Tools(ctx, nil) {
			o.tools = add(o.tools, t, err, &errs)
		}
	}
	if has != nil && has.Prompts != nil {
		for p, err := range l.session.Prompts(ctx, nil) {
			o.prompts = add(o.prompts, p, err, &errs)
		}
	}
	if has != nil && has.Resources != nil {
		for r, err := range l.session.Resources(ctx, nil) {
			o.resources = add(o.resources, r, err, &errs)
		}
		for t, err := range l.session.ResourceTemplates(ctx, nil) {
			if err != nil {
				break // a server without templates may lack the method
			}
			o.templates = add(o.templates, t, nil, &errs)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offer = o
	return nil
}

func add[T any](list []*T, item *T, err error, errs *[]error) []*T {
	switch {
	case err != nil:
		*errs = append(*errs, err)
	case len(list) == maxOffer && len(*errs) == 0:
		*errs = append(*errs, fmt.Errorf("it offers more than %d items of one kind", maxOffer))
	case item != nil && len(list) < maxOffer:
		return append(list, item)
	}
	return list
}

// tool is a tool of a server.
type tool struct {
	server  *server
	alias   string    // the name that clients see
	tool    *mcp.Tool // as the server defined it
	visible bool
	schema  func() *jsonschema.Resolved // nil: only the server can check arguments
}

// alias returns the name that clients see.
func (n Naming) alias(server, name string) string {
	switch n {
	case Flat:
		return name
	case Underlined:
		return server + "__" + name
	}
	return server + "." + name
}

// catalog is everything that the servers offer together. It is immutable.
type catalog struct {
	tools   map[string]*tool   // by alias
	forms   map[string]*tool   // by server.tool and server__tool, unless it is another's alias
	prompts map[string]*prompt // by alias
	owners  map[string]*server // of resources and templates, by address
}

type prompt struct {
	server *server
	name   string // the server's
}

// item is a feature for go-sdk's server.
type item struct {
	kind  kinds
	alias string
	owner *server
	seen  any // what clients see, to notice changes
	serve func()
}

// gather builds the catalog. If two servers offer the same name, the one that comes first in the file keeps it, so that
// no other can take over its calls.
func (h *Hub) gather() (*catalog, []item) {
	c := &catalog{map[string]*tool{}, map[string]*tool{}, map[string]*prompt{}, map[string]*server{}}
	var items []item
	taken := map[string]bool{}
	take := func(s *server, kind kinds, what, alias string, seen any, serve func()) bool {
		key := fmt.Sprint(kind, alias)
		if taken[key] || (kind == toolKind && len(alias) > maxName) {
			h.log.Warn("this name is taken or too long, so it is not served; block it or rename the server", "server", s.Name, "what", what, "name", alias)
			return false
		}
		taken[key] = true
		items = append(items, item{kind, alias, s, seen, serve})
		return true
	}
	for _, s := range h.servers {
		s.mu.Lock()
		o := s.offer
		s.mu.Unlock()
		for _, def := range o.tools {
			t := &tool{s, h.config.Naming.alias(s.Name, def.Name), def, s.Rules.Visible(s.Name, def.Name, isReadOnly(def)), sync.OnceValue(func() *jsonschema.Resolved { return compileSchema(def) })}
			if !t.visible {
				c.forms[Dotted.alias(s.Name, def.Name)] = t // to deny its calls by rule
				if c.tools[t.alias] == nil {
					c.tools[t.alias] = t
				}
				continue
			}
			seen := *def
			seen.Name = t.alias
			if take(s, toolKind, "tool", t.alias, seen, func() { h.mcp.AddTool(&seen, t.forward) }) {
				c.tools[t.alias] = t
				c.forms[Dotted.alias(s.Name, def.Name)], c.forms[Underlined.alias(s.Name, def.Name)] = t, t
			}
		}
		for _, def := range o.prompts {
			seen := *def
			seen.Name = h.config.Naming.alias(s.Name, def.Name)
			if take(s, promptKind, "prompt", seen.Name, seen, func() { h.mcp.AddPrompt(&seen, s.getPrompt(def.Name)) }) {
				c.prompts[seen.Name] = &prompt{s, def.Name}
			}
		}
		for _, r := range o.resources {
			if take(s, resourceKind, "resource", r.URI, r, func() { h.mcp.AddResource(r, s.readResource) }) {
				c.owners[r.URI] = s
			}
		}
		for _, t := range o.templates {
			if take(s, templateKind, "resource template", t.URITemplate, t, func() { h.mcp.AddResourceTemplate(t, s.readResource) }) {
				c.owners[t.URITemplate] = s
			}
		}
	}
	return c, items
}

// isReadOnly returns a tool's readOnlyHint; the default is false (MCP, ToolAnnotations).
func isReadOnly(t *mcp.Tool) bool { return t.Annotations != nil && t.Annotations.ReadOnlyHint }

// publish updates the MCP server, which notifies the clients. Lists that a server reported as changed are repeated:
// subscribers must hear of them even if they look the same. go-sdk panics on invalid features, for instance a schema
// that isn't an object: those are left out.
func (h *Hub) publish(from *server, said kinds) {
	h.publishing.Lock()
	defer h.publishing.Unlock()
	c, items := h.gather()
	h.mu.Lock()
	h.catalog = c
	h.mu.Unlock()
	next := map[feature]digest{}
	for _, i := range items {
		key := feature{i.kind, i.alias}
		text, err := json.Marshal(i.seen)
		sum := digest{i.owner, sha256.Sum256(text)}
		if err == nil && (h.shown[key] != sum || i.owner == from && said&i.kind != 0) {
			err = callRecovered(i.serve)
		}
		if err != nil {
			h.log.Warn("what a server offers can't be served", "server", i.owner.Name, "name", i.alias, "error", err)
			continue
		}
		next[key] = sum
	}
	gone := map[kinds][]string{}
	for key := range h.shown {
		if _, ok := next[key]; !ok {
			gone[key.kind] = append(gone[key.kind], key.alias)
		}
	}
	for kind, remove := range map[kinds]func(...string){
		toolKind: h.mcp.RemoveTools, promptKind: h.mcp.RemovePrompts, resourceKind: h.mcp.RemoveResources, templateKind: h.mcp.RemoveResourceTemplates,
	} {
		if len(gone[kind]) > 0 {
			remove(gone[kind]...)
		}
	}
	h.shown = next
}

// feature and digest are what the MCP server was told.
type feature struct {
	kind  kinds
	alias string
}

type digest struct {
	owner *server
	sum   [sha256.Size]byte
}

func callRecovered(f func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	f()
	return nil
}

// compileSchema returns a checker for a tool's arguments. It returns nil if only the server can check them: the schema
// is too large, of an unknown draft, or has references. Nothing is ever fetched, and a reference may be recursive.
func compileSchema(t *mcp.Tool) *jsonschema.Resolved {
	text, err := json.Marshal(t.InputSchema)
	var schema jsonschema.Schema
	if err != nil || len(text) > maxChecked || strings.Contains(string(text), `Ref"`) || strings.Contains(string(text), `"$ref"`) || json.Unmarshal(text, &schema) != nil {
		return nil
	}
	if d := schema.Schema; d != "" && !strings.Contains(d, "draft/2020-12/schema") && !strings.Contains(d, "draft-07/schema") {
		return nil
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		return nil
	}
	return resolved
}

// checkArguments returns a failure for arguments that violate the tool's inputSchema.
func (t *tool) checkArguments(arguments json.RawMessage) *failure {
	if len(arguments) > maxChecked {
		return nil
	}
	schema, value := t.schema(), any(map[string]any{})
	if schema == nil || len(arguments) > 0 && string(arguments) != "null" && json.Unmarshal(arguments, &value) != nil {
		return nil // the guard has checked that it is JSON
	}
	if err := schema.Validate(value); err != nil {
		return &failure{
			name: "INVALID_ARGUMENTS", rule: "arguments.schema",
			text: "the arguments of " + t.alias + " do not fit its inputSchema: " + oneLine(err.Error()) + "; see tools/list",
		}
	}
	return nil
}
