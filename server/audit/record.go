package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"
)

// Values of Record.Event and Record.Events. A call has one line: Event is its outcome (ToolFinished or PolicyBlocked),
// Events lists everything that happened, in order.
const (
	ToolCall       = "MCP_TOOL_CALL"
	PolicyBlocked  = "POLICY_BLOCKED"
	SandboxExec    = "SANDBOX_EXEC"
	ToolFinished   = "TOOL_FINISHED"
	NetworkBlocked = "MCP_NETWORK_BLOCKED"
	NetworkAllowed = "MCP_NETWORK_ALLOWED"
	CommandBlocked = "MCP_COMMAND_BLOCKED"
	FileWrite      = "MCP_FILE_WRITE"
	Start          = "START"
	Stop           = "STOP"
	Reload         = "RELOAD"

	// Repaired is written by the log itself: a torn last line was moved aside, or lines could not be written for a
	// while. Note has the details.
	Repaired = "AUDIT_REPAIRED"
)

// Record is one line of the log. Empty fields are omitted. The caller must redact texts; long ones are cut so that a
// line has at most 64 KiB. The log adds ts, seq, prev and hash.
type Record struct {
	Event     string   `json:"event"`
	Events    []string `json:"events,omitempty"`
	RequestID string   `json:"request_id,omitempty"`  // the same in the lines of nginx
	Requests  []string `json:"request_ids,omitempty"` // of the egress proxy: of all running calls, if there are several
	TraceID   string   `json:"trace_id,omitempty"`
	Subject   string   `json:"subject,omitempty"` // the caller: key:ID, sub:SUBJECT or anonymous
	Session   string   `json:"session,omitempty"` // a hash of the session's id
	Protocol  string   `json:"protocol,omitempty"`

	Tool       string   `json:"tool,omitempty"`
	Subcommand string   `json:"subcommand,omitempty"`
	Argv       []string `json:"argv,omitempty"`
	URLHost    string   `json:"url_host,omitempty"` // never the complete URL

	Host    string `json:"host,omitempty"` // of the egress proxy: the requested host
	Port    int    `json:"port,omitempty"`
	Address string `json:"address,omitempty"` // of the egress proxy: the dialled or refused address

	Decision  string `json:"decision,omitempty"` // allow or deny
	Rule      string `json:"rule,omitempty"`
	ErrorName string `json:"error_name,omitempty"` // POLICY_BLOCKED and so on

	PolicySHA256 string `json:"policy_sha256,omitempty"`
	RunID        string `json:"run_id,omitempty"`
	Note         string `json:"note,omitempty"`

	// Data holds an event's other fields, as a JSON object. If it is larger than 32 KiB, a note replaces it.
	Data any `json:"data,omitempty"`

	// Refused marks something that did not happen. Such records are short, and only the first of several alike has a
	// line.
	Refused bool `json:"-"`

	ClientName, ClientVersion string `json:"-"` // written as an object

	// Of a call (Tool is not empty); written even if 0.
	ExitCode   int   `json:"-"`
	DurationMS int64 `json:"-"`
	BytesOut   int   `json:"-"`
	Truncated  bool  `json:"-"`
}

// line is the written form of a Record. Verify relies on ts and seq being first, prev and hash last.
type line struct {
	TS  string `json:"ts"`
	Seq int64  `json:"seq"`
	Record
	Client *client `json:"client,omitempty"`
	*outcome
	Prev string `json:"prev"`
}

type client struct {
	Name    string `json:"name,omitempty"`
	Version string `json:"version,omitempty"`
}

type outcome struct {
	ExitCode   int   `json:"exit_code"`
	DurationMS int64 `json:"duration_ms"`
	BytesOut   int   `json:"bytes_out"`
	Truncated  bool  `json:"truncated,omitempty"`
}

// maxLine limits a line, newline included.
const maxLine = 64 << 10

// Limits for parts of a record, in bytes of JSON.
const (
	maxData    = 32 << 10
	maxText    = 4096 // of a text, and of all words of Argv together
	maxRefused = 256  // the same for a refusal
	maxSaid    = 128  // of a client's own claims
)

// encode returns the record's line, newline included, and its hash.
func (r Record) encode(at time.Time, last head) ([]byte, head, error) {
	for most := maxText; ; most /= 2 {
		b, err := r.cutTexts(most).marshal(at, last)
		if err != nil {
			return nil, head{}, err
		}
		next := head{seq: last.seq + 1, hash: hashLine(b)}
		if len(b)+len(hashField(next.hash)) > maxLine && most > 1 {
			continue
		}
		b = append(b[:len(b)-1], hashField(next.hash)...)
		return b, next, nil
	}
}

// marshal returns the line without hash and newline.
func (r Record) marshal(at time.Time, last head) ([]byte, error) {
	l := line{TS: at.UTC().Format(timeFormat), Seq: last.seq + 1, Record: r, Prev: last.hash}
	if r.ClientName != "" || r.ClientVersion != "" {
		l.Client = &client{r.ClientName, r.ClientVersion}
	}
	if r.Data != nil {
		data, err := json.Marshal(r.Data)
		if err != nil {
			return nil, fmt.Errorf("audit record: %w", err)
		}
		if l.Data = json.RawMessage(data); len(data) > maxData {
			l.Data = map[string]int{"bytes_left_out": len(data)}
		}
	}
	if r.Tool != "" {
		l.outcome = &outcome{r.ExitCode, r.DurationMS, r.BytesOut, r.Truncated}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(l); err != nil {
		return nil, fmt.Errorf("audit record: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// cutTexts limits every text to most bytes of JSON, and every list to 64 elements.
func (r Record) cutTexts(most int) Record {
	if r.Refused {
		most = min(most, maxRefused)
	}
	for _, s := range []*string{
		&r.Event, &r.Tool, &r.Subcommand, &r.URLHost, &r.Host, &r.Address, &r.Decision, &r.Rule, &r.ErrorName, &r.PolicySHA256,
		&r.RunID, &r.Note,
	} {
		*s = cutText(*s, most)
	}
	for _, s := range []*string{&r.RequestID, &r.TraceID, &r.Subject, &r.Session, &r.ClientName, &r.ClientVersion, &r.Protocol} {
		*s = cutText(*s, min(most, maxSaid))
	}
	r.Events, r.Argv, r.Requests = cutList(r.Events, most), cutWords(r.Argv, most), cutList(r.Requests, min(most, maxSaid))
	return r
}

const maxList = 64

func cutList(list []string, most int) []string {
	if list == nil {
		return nil
	}
	out := make([]string, 0, min(len(list), maxList+1))
	for i, s := range list {
		if i == maxList {
			return append(out, fmt.Sprintf("[%d more cut]", len(list)-i))
		}
		out = append(out, cutText(s, most))
	}
	return out
}

// cutWords limits all words together.
func cutWords(argv []string, most int) []string {
	out := cutList(argv, most)
	for i, s := range out {
		if most -= sizeOf(s) + len(`"",`); most < 0 {
			return append(out[:i], fmt.Sprintf("[%d more cut]", len(argv)-i))
		}
	}
	return out
}

// cutText cuts a text to at most `most` bytes of JSON.
func cutText(s string, most int) string {
	if len(s) <= most && sizeOf(s) <= most {
		return s
	}
	room := most - len(fmt.Sprintf("[%d bytes cut]", len(s)))
	kept := cutWritten(s, room)
	return kept + fmt.Sprintf("[%d bytes cut]", len(s)-len(kept))
}

// cutWritten returns the longest beginning of s with at most `most` bytes of JSON.
func cutWritten(s string, most int) string {
	for i, r := range s {
		if most -= writtenRune(r); most < 0 {
			return s[:i]
		}
	}
	return s
}

// sizeOf returns the size of a text in encode's JSON, without the quotes.
func sizeOf(s string) (n int) {
	for _, r := range s {
		n += writtenRune(r)
	}
	return n
}

func writtenRune(r rune) int {
	switch {
	case r == '"', r == '\\', r == '\b', r == '\f', r == '\n', r == '\r', r == '\t':
		return 2
	case r < ' ', r == utf8.RuneError, r == '\u2028', r == '\u2029': // RuneError may stand for a byte that is not UTF-8
		return 6
	}
	return utf8.RuneLen(r)
}
