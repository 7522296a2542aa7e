package audit

import (
	"fmt"
	"strings"
	"time"
)

const (
	// repeatTime is the time between two lines that count refusals which are alike.
	repeatTime = time.Minute
	// maxKinds is the number of kinds that are told apart in that time. Beyond it only the rule tells one from another.
	maxKinds = 32
)

// repeats keeps a client from pushing all else out of the log with what is refused anyway. The first refusal of a kind is
// written at once; the others are counted, and a line says how many there were and when.
type repeats struct {
	every time.Duration
	kinds map[string]*repeat
	timer *time.Timer // while there are kinds
}

// repeat counts the refusals that are not in the log yet.
type repeat struct {
	like        Record
	count       int
	first, last time.Time
}

// kindOf returns what refusals that are alike have in common.
func kindOf(r Record) string {
	return strings.Join(append([]string{r.Event, r.Subject, r.Tool, r.Subcommand, r.Host, fmt.Sprint(r.Port), r.Decision, r.Rule, r.ErrorName}, r.Argv...), "\x00")
}

// refuse writes or counts a refusal; the log is locked.
func (l *Log) refuse(rec Record) error {
	rec = rec.cut(maxText)
	kind := kindOf(rec)
	known := l.repeats.kinds[kind]
	if known == nil && len(l.repeats.kinds) >= maxKinds {
		rec = Record{Event: rec.Event, Decision: rec.Decision, Rule: rec.Rule, ErrorName: rec.ErrorName, PolicySHA256: rec.PolicySHA256, RunID: rec.RunID}
		kind = kindOf(rec)
		known = l.repeats.kinds[kind]
	}
	if known != nil {
		now := l.now()
		if known.count++; known.count == 1 {
			known.first = now
		}
		known.last = now
		return nil
	}
	if err := l.append(rec); err != nil {
		return err
	}
	rec.RequestID, rec.Requests, rec.TraceID, rec.Session = "", nil, "", "" // of the first one alone
	l.repeats.kinds[kind] = &repeat{like: rec}
	if l.repeats.timer == nil {
		l.repeats.timer = time.AfterFunc(l.repeats.every, l.tick)
	}
	return nil
}

func (l *Log) tick() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	_ = l.locked(l.flush) // what could not be written is tried again
	l.repeats.timer = nil
	if len(l.repeats.kinds) > 0 {
		l.repeats.timer = time.AfterFunc(l.repeats.every, l.tick)
	}
}

// flush writes the counts. It forgets a kind of which nothing came since the last time.
func (l *Log) flush() error {
	for kind, r := range l.repeats.kinds {
		if r.count == 0 {
			delete(l.repeats.kinds, kind)
			continue
		}
		rec := r.like
		rec.Note = fmt.Sprintf("and %d more", r.count)
		rec.Data = map[string]any{"count": r.count, "first": r.first.UTC().Format(timeFormat), "last": r.last.UTC().Format(timeFormat)}
		if err := l.append(rec); err != nil {
			return err
		}
		r.count = 0
	}
	return nil
}
