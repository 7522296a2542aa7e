package upstream

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

const (
	// maxLine limits a server's line in bytes, as go-sdk does: results contain images.
	maxLine = 16 << 20
	// maxNoise limits the logged part of a line that isn't a message.
	maxNoise = 1 << 10
)

// errHuge reports an answer longer than maxLine. Its id comes at its end, if at all, so it can't be assigned to a
// waiting call.
var errHuge = fmt.Errorf("the server sent a message of more than %d bytes", maxLine)

// scanner finds the messages in a program's stdout. It logs other lines, each of which would end go-sdk's session.
type scanner struct {
	in  *bufio.Reader
	log io.Writer
}

// readMessages returns the messages of the next line that has any: one, or those of a batch (MCP 2025-03-26). It
// returns errHuge for a message longer than maxLine.
func (s *scanner) readMessages() ([]jsonrpc.Message, error) {
	for {
		text, size, err := s.readLine()
		if err != nil {
			return nil, err
		}
		if size > maxLine {
			s.logNoise(text, size)
			continue
		}
		if msgs := decodeMessages(text); msgs != nil {
			return msgs, nil
		}
		if len(bytes.TrimSpace(text)) > 0 {
			s.logNoise(text, size)
		}
	}
}

// readLine reads to the next newline. It returns only the beginning of a line longer than maxLine, or errHuge if that
// begins a message. The last line needs no newline.
func (s *scanner) readLine() (text []byte, size int, err error) {
	for {
		part, err := s.in.ReadSlice('\n')
		size += len(part)
		if size <= maxLine {
			text = append(text, part...)
		} else if len(text) > maxNoise {
			text = bytes.Clone(text[:maxNoise]) // frees the rest
		}
		switch {
		case size > maxLine && looksLikeMessage(text):
			return nil, size, errHuge
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil && size == 0:
			return nil, 0, err
		default: // the error will be returned again
			return text, size, nil
		}
	}
}

func (s *scanner) logNoise(text []byte, size int) {
	text = bytes.TrimRight(text, "\r\n")
	if len(text) <= maxNoise && size <= maxLine {
		fmt.Fprintf(s.log, "stdout: %s\n", text)
		return
	}
	text = text[:min(len(text), maxNoise)]
	fmt.Fprintf(s.log, "stdout: %s... (a line of %d bytes)\n", text, size)
}

// looksLikeMessage reports whether a line begins like an object or an array.
func looksLikeMessage(line []byte) bool {
	line = bytes.TrimSpace(line)
	return len(line) > 0 && (line[0] == '{' || line[0] == '[')
}

// decodeMessages returns nil for a text that is not a message.
func decodeMessages(text []byte) []jsonrpc.Message {
	text = bytes.TrimSpace(text)
	if !looksLikeMessage(text) || !utf8.Valid(text) {
		return nil
	}
	var batch []json.RawMessage
	if text[0] == '{' {
		batch = append(batch, text)
	} else if json.Unmarshal(text, &batch) != nil {
		return nil
	}
	var msgs []jsonrpc.Message
	for _, raw := range batch {
		msg := decodeOne(raw)
		if msg == nil {
			return nil
		}
		msgs = append(msgs, msg)
	}
	return msgs
}

// decodeOne decodes results itself: most messages are results, and DecodeMessage allocates 32 KiB for each.
func decodeOne(text []byte) jsonrpc.Message {
	var fields map[string]json.RawMessage // a struct would accept keys in any case
	if json.Unmarshal(text, &fields) != nil {
		return nil
	}
	id, err := strconv.ParseInt(string(fields["id"]), 10, 32) // our ids are small
	if err == nil && fields["method"] == nil && fields["error"] == nil && fields["result"] != nil && string(fields["jsonrpc"]) == `"2.0"` {
		id, _ := jsonrpc.MakeID(float64(id)) // accepts a number
		return &jsonrpc.Response{ID: id, Result: fields["result"]}
	}
	msg, err := jsonrpc.DecodeMessage(text)
	if err != nil {
		return nil
	}
	return msg
}
