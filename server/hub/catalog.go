package hub

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// maxName limits a name that clients see, since some models take no longer ones.
const maxName = 64

// catalog is everything that the servers offer together. It is immutable.
type catalog struct {
	tools     map[string]*tool
	prompts   map[string]*prompt
	resources map[string]*resource
	templates map[string]*template
	problems  []error // offers that can't be listed
}

type tool struct {
	server  *server
	alias   string
	tool    *mcp.Tool // as the server defined it
	blocked bool
	schema  func() *jsonschema.Resolved // nil: the hub doesn't check arguments

	fourKeys func() bool // see hasFourKeys
}

type prompt struct {
	server *server
	alias  string
	prompt *mcp.Prompt
}

type resource struct {
	server   *server
	resource *mcp.Resource
}

type template struct {
	server   *server
	template *mcp.ResourceTemplate
}

// listNames returns the names of the tools that tools/list shows, in order.
func (c *catalog) listNames() []string {
	var names []string
	for alias, t := range c.tools {
		if !t.blocked {
			names = append(names, alias)
		}
	}
	slices.Sort(names)
	return names
}

// gatherCatalog builds the catalog. If two servers offer the same name, the one that comes first in the file keeps it,
// so that no other can take over its calls.
func gatherCatalog(servers []*server, naming Naming, policy checker) *catalog {
	c := &catalog{tools: map[string]*tool{}, prompts: map[string]*prompt{}, resources: map[string]*resource{}, templates: map[string]*template{}}
	for _, s := range servers {
		s.mu.Lock()
		o := s.offer
		s.mu.Unlock()
		name := s.config.Name
		for _, t := range o.tools {
			alias := naming.alias(name, t.Name)
			here := &tool{s, alias, t, !policy.Visible(name, t.Name, alias, isReadOnly(t)), sync.OnceValue(func() *jsonschema.Resolved { return compileSchema(t) }), sync.OnceValue(func() bool { return hasFourKeys(t) })}
			switch old := c.tools[alias]; {
			case old != nil && here.blocked: // hidden from clients
			case old != nil && !old.blocked:
				c.addCollision("tool", alias, old.server, s, naming)
			case c.checkLength("tool", alias, s):
				c.tools[alias] = here
			}
		}
		for _, p := range o.prompts {
			alias := naming.alias(name, p.Name)
			if old, ok := c.prompts[alias]; ok {
				c.addCollision("prompt", alias, old.server, s, naming)
			} else if c.checkLength("prompt", alias, s) {
				c.prompts[alias] = &prompt{s, alias, p}
			}
		}
		for _, r := range o.resources {
			if old, ok := c.resources[r.URI]; ok {
				c.addCollision("resource", r.URI, old.server, s, naming)
			} else {
				c.resources[r.URI] = &resource{s, r}
			}
		}
		for _, t := range o.templates {
			if old, ok := c.templates[t.URITemplate]; ok {
				c.addCollision("resource template", t.URITemplate, old.server, s, naming)
			} else {
				c.templates[t.URITemplate] = &template{s, t}
			}
		}
	}
	return c
}

// isReadOnly returns a tool's readOnlyHint; the default is false (MCP, ToolAnnotations).
func isReadOnly(t *mcp.Tool) bool { return t.Annotations != nil && t.Annotations.ReadOnlyHint }

// alias returns the name that clients see.
func (n Naming) alias(server, name string) string {
	if n == Prefixed {
		return server + "__" + name
	}
	return name
}

func (c *catalog) addCollision(kind, name string, first, second *server, naming Naming) {
	if first == second {
		c.problems = append(c.problems, fmt.Errorf("server %s offers the %s %q twice; only the first is served", first.config.Name, kind, name))
		return
	}
	remedy := "remove one of the servers" // addresses don't depend on the naming
	switch {
	case kind == "resource" || kind == "resource template":
	case naming == Flat:
		remedy = `set "naming": "server__tool" in mcp-hub.json`
	default: // for instance a__b of c and b of c__a
		remedy = "give one of the servers another name in mcp-hub.json"
	}
	if kind == "tool" {
		own := strings.TrimPrefix(name, naming.alias(second.config.Name, ""))
		remedy += fmt.Sprintf(", or block %q in hub.policy.json", second.config.Name+"/"+own)
	}
	c.problems = append(c.problems, fmt.Errorf("servers %s and %s both offer the %s %q; only that of %s is served: %s",
		first.config.Name, second.config.Name, kind, name, first.config.Name, remedy))
}

func (c *catalog) checkLength(kind, alias string, s *server) bool {
	if len(alias) <= maxName {
		return true
	}
	c.problems = append(c.problems, fmt.Errorf("the %s %.80q of server %s has a name longer than %d characters and is not served: give the server a shorter name",
		kind, alias, s.config.Name, maxName))
	return false
}

// shown is the state of the MCP server, by kind and key.
type shown [4]map[string]digest

type digest = [sha256.Size]byte

// Kinds of features, as indices of shown.
const (
	kindTool = iota
	kindPrompt
	kindResource
	kindTemplate
)

// kinds is a set of lists.
type kinds int

const (
	tools     kinds = 1 << kindTool
	prompts   kinds = 1 << kindPrompt
	resources kinds = 1 << kindResource
)

// forgetShown makes publish repeat lists of a server, which notifies the clients. The server reported a change, and
// subscribers must hear of it even if the list looks the same.
func (h *Hub) forgetShown(s *server, said kinds) {
	h.publishing.Lock()
	defer h.publishing.Unlock()
	h.mu.Lock()
	c := h.catalog
	h.mu.Unlock()
	if said&tools != 0 {
		maps.DeleteFunc(h.shown[kindTool], func(alias string, _ digest) bool { return c.tools[alias] != nil && c.tools[alias].server == s })
	}
	if said&prompts != 0 {
		maps.DeleteFunc(h.shown[kindPrompt], func(alias string, _ digest) bool { return c.prompts[alias] != nil && c.prompts[alias].server == s })
	}
	if said&resources != 0 {
		maps.DeleteFunc(h.shown[kindResource], func(uri string, _ digest) bool { return c.resources[uri] != nil && c.resources[uri].server == s })
	}
}

// publish updates the MCP server, which notifies the clients.
func (h *Hub) publish() {
	h.publishing.Lock()
	defer h.publishing.Unlock()
	h.mu.Lock()
	c := gatherCatalog(h.servers, h.naming, h.policy)
	h.catalog = c
	h.mu.Unlock()
	h.logProblems(c.problems)
	var next shown
	next[kindTool] = updateFeatures(h.shown[kindTool], c.tools, h.log.Warn, func(alias string, t *tool) *mcp.Tool {
		if t.blocked {
			return nil
		}
		seen := *t.tool
		seen.Name = alias
		return &seen
	}, func(t *mcp.Tool) { h.mcp.AddTool(t, h.callTool) }, h.mcp.RemoveTools)
	next[kindPrompt] = updateFeatures(h.shown[kindPrompt], c.prompts, h.log.Warn, func(alias string, p *prompt) *mcp.Prompt {
		seen := *p.prompt
		seen.Name = alias
		return &seen
	}, func(p *mcp.Prompt) { h.mcp.AddPrompt(p, h.getPrompt) }, h.mcp.RemovePrompts)
	next[kindResource] = updateFeatures(h.shown[kindResource], c.resources, h.log.Warn, func(_ string, r *resource) *mcp.Resource {
		return r.resource
	}, func(r *mcp.Resource) { h.mcp.AddResource(r, h.readResource) }, h.mcp.RemoveResources)
	next[kindTemplate] = updateFeatures(h.shown[kindTemplate], c.templates, h.log.Warn, func(_ string, t *template) *mcp.ResourceTemplate {
		return t.template
	}, func(t *mcp.ResourceTemplate) { h.mcp.AddResourceTemplate(t, h.readResource) }, h.mcp.RemoveResourceTemplates)
	h.shown = next
}

// updateFeatures adds new or changed features and removes missing ones. go-sdk panics on invalid features, for instance
// a schema that isn't an object: those are left out.
func updateFeatures[K, V any](old map[string]digest, now map[string]*K, warn func(string, ...any), see func(string, *K) *V, add func(*V), remove func(...string)) map[string]digest {
	next := map[string]digest{}
	var gone []string
	for key, item := range now {
		seen := see(key, item)
		if seen == nil {
			continue
		}
		text, err := json.Marshal(seen)
		sum := sha256.Sum256(text)
		if err == nil && old[key] != sum {
			err = callRecovered(func() { add(seen) })
		}
		if err != nil {
			warn("what a server offers can't be served", "name", key, "error", err)
			continue
		}
		next[key] = sum
	}
	for key := range old {
		if _, ok := next[key]; !ok {
			gone = append(gone, key)
		}
	}
	if len(gone) > 0 {
		slices.Sort(gone)
		remove(gone...)
	}
	return next
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
