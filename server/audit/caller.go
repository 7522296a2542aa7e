package audit

import (
	"strings"
	"unicode/utf8"
)

// MetaCaller is the key of _meta by which the hub names a request's caller to a program that it started. The hub drops
// the key from clients' requests.
const MetaCaller = "io.github.slimctl/caller"

// Anonymous is the subject of a caller without a credential.
const Anonymous = "anonymous"

// Caller identifies the caller of a request.
type Caller struct {
	RequestID string // of the request, the same in the logs of nginx, hub and tool
	Subject   string // key:ID, sub:SUBJECT or anonymous, from the gate
	Session   string // a hash of the MCP session's id; empty without one

	ClientName, ClientVersion string // the MCP client's own claim
}

// Meta returns the value for MetaCaller.
func (c Caller) Meta() map[string]any {
	m := map[string]any{}
	for key, text := range c.fields() {
		if *text != "" {
			m[key] = BoundText(*text)
		}
	}
	return m
}

// CallerOf parses the value of MetaCaller. It ignores fields that aren't text.
func CallerOf(meta any) (c Caller) {
	m, _ := meta.(map[string]any)
	for key, text := range c.fields() {
		s, _ := m[key].(string)
		*text = BoundText(s)
	}
	return c
}

// metaEnded is the key, beside a Caller's, of the MCP sessions that have ended.
const metaEnded = "ended"

// maxEnded is the number of ended sessions that the hub keeps.
const maxEnded = 1024

// MetaWith returns the value for MetaCaller, with MCP sessions that have ended.
func (c Caller) MetaWith(ended []string) map[string]any {
	m := c.Meta()
	if len(ended) > 0 {
		m[metaEnded] = ended
	}
	return m
}

// EndedOf returns the ended MCP sessions in the value of MetaCaller.
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

// BoundText cuts a client's text to 128 bytes in JSON, and replaces control characters.
func BoundText(s string) string {
	s = strings.ToValidUTF8(s[:min(len(s), maxSaid)], "")
	return cutWritten(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return utf8.RuneError
		}
		return r
	}, s), maxSaid)
}
