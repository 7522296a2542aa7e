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

func (c *Caller) fields() map[string]*string {
	return map[string]*string{
		"request_id": &c.RequestID, "subject": &c.Subject, "client_name": &c.ClientName, "client_version": &c.ClientVersion,
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
