package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/slimctl/slimctl/internal/lazyregexp"
)

// head is the last line of a chain.
type head struct {
	seq  int64
	hash string
}

// genesis is the prev of the very first line.
var genesis = head{hash: strings.Repeat("0", hashLen)}

const (
	hashLen    = 2 * sha256.Size
	timeFormat = "2006-01-02T15:04:05.000Z"
)

func hashLine(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// hashField replaces the closing brace of a line.
func hashField(hash string) string { return `,"hash":"` + hash + "\"}\n" }

// entry is a parsed line.
type entry struct {
	head
	prev string
	ts   time.Time
	ok   bool // it has the form of a line
	true bool // its hash matches its content
}

// The beginning and the end of a line.
var (
	lineHead = lazyregexp.New(`^\{"ts":"(.{24})","seq":([0-9]+),`)
	lineTail = lazyregexp.New(`^,"prev":"([0-9a-f]{64})"(,"hash":"([0-9a-f]{64})"\})$`)
)

// tailLen is the length of lineTail's match.
const tailLen = len(`,"prev":""`) + hashLen + len(`,"hash":""}`) + hashLen

// parseLine parses a line without its newline.
func parseLine(b []byte) entry {
	if len(b) < tailLen || len(b) >= maxLine || !json.Valid(b) {
		return entry{}
	}
	first := lineHead.FindSubmatch(b)
	tail := lineTail.FindSubmatch(b[len(b)-tailLen:])
	if first == nil || tail == nil {
		return entry{}
	}
	ts, err1 := time.Parse(timeFormat, string(first[1]))
	seq, err2 := strconv.ParseInt(string(first[2]), 10, 64)
	if err1 != nil || err2 != nil || seq < 1 {
		return entry{}
	}
	e := entry{head: head{seq, string(tail[3])}, prev: string(tail[1]), ts: ts, ok: true}
	h := sha256.New()
	h.Write(b[:len(b)-len(tail[2])])
	h.Write([]byte("}"))
	e.true = hex.EncodeToString(h.Sum(nil)) == e.hash
	return e
}

// follows reports whether e is the next line after h.
func (e entry) follows(h head) bool {
	return e.ok && e.true && e.prev == h.hash && e.seq == h.seq+1
}
