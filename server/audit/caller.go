package audit

import (
	"strings"
	"unicode/utf8"
)

// MetaCaller is the key of _meta by which the hub tells a program that it started who makes a call. What a client sends
// under this key is dropped by the hub.
const MetaCaller = "io.github.slimctl/caller"

// Caller is who makes a call.
type Caller struct {
	RequestID string // of the request; nginx, hub and tool record the same
	Subject   string // key:ID, sub:SUBJECT or anonymous, as the gate has it
	Session   string // a hash of the MCP session's id; empty where there is none

	ClientName, ClientVersion string // what the MCP client says of itself
}

// Meta gives the value for MetaCaller.
func (c Caller) Meta() map[string]any {
	m := map[string]any{}
	for key, text := range c.fields() {
		if *text != "" {
			m[key] = BoundText(*text)
		}
	}
	return m
}

// CallerOf reads the value of MetaCaller. What isn't a text is left out.
func CallerOf(meta any) (c Caller) {
	m, _ := meta.(map[string]any)
	for key, text := range c.fields() {
		s, _ := m[key].(string)
		*text = BoundText(s)
	}
	return c
}

// metaEnded is the key, beside a Caller's, of the MCP sessions that are over.
const metaEnded = "ended"

// maxEnded is as many as the hub keeps.
const maxEnded = 1024

// MetaWith gives the value for MetaCaller, with MCP sessions that are over.
func (c Caller) MetaWith(ended []string) map[string]any {
	m := c.Meta()
	if len(ended) > 0 {
		m[metaEnded] = ended
	}
	return m
}

// EndedOf reads the MCP sessions that are over from the value of MetaCaller.
func EndedOf(meta any) (ended []string) {
	m, _ := meta.(map[string]any)
	list, _ := m[metaEnded].([]any)
	for _, id := range list[:min(len(list), maxEnded)] {
		if s, ok := id.(string); ok {
			ended = append(ended, BoundText(s))
		}
	}
	return ended
}

func (c *Caller) fields() map[string]*string {
	return map[string]*string{
		"request_id": &c.RequestID, "subject": &c.Subject, "mcp_session": &c.Session, "client_name": &c.ClientName, "client_version": &c.ClientVersion,
	}
}

// BoundText cuts what a client says of itself to 128 bytes as they are written, and replaces control characters.
func BoundText(s string) string {
	s = strings.ToValidUTF8(s[:min(len(s), maxSaid)], "")
	return cutWritten(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return utf8.RuneError
		}
		return r
	}, s), maxSaid)
}
