package audit

import (
	"strings"
	"unicode/utf8"
)

// Anonymous is the subject of a caller without a credential.
const Anonymous = "anonymous"

// Caller identifies the caller of a request.
type Caller struct {
	RequestID string // of the request, the same in the logs of nginx and the tool
	Subject   string // key:ID, sub:SUBJECT or anonymous, from the gate
	Session   string // a hash of the MCP session's id; empty without one

	ClientName, ClientVersion string // the MCP client's own claim
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
