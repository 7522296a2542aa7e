package audit

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// repeatTime is the interval between two lines that count similar refusals.
	repeatTime = time.Minute
	// maxKinds is the number of kinds of one session's refusals that are counted separately in that time. Beyond it
	// only the rule distinguishes them.
	maxKinds = 16
	// maxSessions is the number of a subject's sessions that are counted separately. Further ones share a table.
	maxSessions = 32
	// maxRepeats is the number of all kinds. Beyond it the counts are written at once.
	maxRepeats = 2048
	// maxNames limits the names of hosts, and of sessions, in a line that counts, in bytes.
	maxNames = 1024
)

// repeats prevents a client from filling the log with refusals. The first refusal of a kind is written immediately;
// later ones are counted, and a line has their number and time. Each session of each subject has a table of its own, so
// that no other one's refusals change what is written of it.
type repeats struct {
	every    time.Duration
	tables   map[owner]map[string]*repeat
	sessions map[string]int // tables of each subject
	size     int            // kinds in all tables
	timer    *time.Timer    // runs while there are kinds
}

// owner names a table; a shared one is of all further sessions of a subject.
type owner struct {
	subject, session string
	shared           bool
}

// repeat counts the refusals that are not in the log yet.
type repeat struct {
	like            Record
	count           int
	first, last     time.Time
	hosts, sessions names // of those with nothing but the rule in common
}

// names is a bounded set of names.
type names struct {
	list []string
	size int
	more int // refusals whose name isn't listed
}

func (n *names) add(name string) {
	switch {
	case name == "" || slices.Contains(n.list, name):
	case n.size+len(name) > maxNames:
		n.more++
	default:
		n.list, n.size = append(n.list, name), n.size+len(name)
	}
}

// kindOf returns the common part of similar refusals, with all of their target or with the rule alone.
func kindOf(r Record, target bool) string {
	kind := []string{r.Event, r.Tool, r.Decision, r.Rule, r.ErrorName}
	if target {
		kind = append(append(kind, r.Session, r.Subcommand, r.URLHost, r.Host, fmt.Sprint(r.Port)), r.Argv...)
	}
	return strings.Join(kind, "\x00")
}

// countRefusal writes or counts a refusal.
func (l *Log) countRefusal(rec Record) error {
	rec = rec.cutTexts(maxText)
	who := owner{subject: rec.Subject, session: rec.Session}
	if l.tables[who] == nil && l.repeats.sessions[rec.Subject] >= maxSessions {
		who = owner{subject: rec.Subject, shared: true}
	}
	table := l.tables[who]
	kind, loose := kindOf(rec, true), false
	if table[kind] == nil && len(table) >= maxKinds {
		kind, loose = kindOf(rec, false), true
	}
	if known := table[kind]; known != nil {
		known.add(rec, l.now())
		return nil
	}
	if err := l.append(rec); err != nil {
		return err
	}
	if loose {
		rec.Argv, rec.Subcommand, rec.URLHost, rec.Host, rec.Port = nil, "", "", "", 0
	}
	return l.addKind(who, kind, &repeat{like: rec})
}

// add counts a refusal.
func (r *repeat) add(rec Record, at time.Time) {
	if r.count++; r.count == 1 {
		r.first = at
	}
	r.last = at
	r.like.RequestID, r.like.Requests, r.like.TraceID = rec.RequestID, rec.Requests, rec.TraceID
	if rec.Host+rec.URLHost != r.like.Host+r.like.URLHost {
		r.hosts.add(rec.URLHost + rec.Host)
	}
	if rec.Session != r.like.Session {
		r.sessions.add(rec.Session)
	}
}

// addKind begins to count a kind. If there are too many, it first writes and forgets the others.
func (l *Log) addKind(who owner, kind string, r *repeat) error {
	if l.repeats.size >= maxRepeats {
		if err := l.writeCounts(); err != nil {
			return err
		}
		l.tables, l.repeats.sessions, l.repeats.size = nil, nil, 0
	}
	if l.tables == nil {
		l.tables, l.repeats.sessions = map[owner]map[string]*repeat{}, map[string]int{}
	}
	if l.tables[who] == nil {
		l.tables[who] = map[string]*repeat{}
		l.repeats.sessions[who.subject]++
	}
	l.tables[who][kind] = r
	l.repeats.size++
	if l.repeats.timer == nil {
		l.repeats.timer = time.AfterFunc(l.repeats.every, l.flushRepeats)
	}
	return nil
}

func (l *Log) flushRepeats() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	_ = l.withFile(l.writeCounts) // retried after an error
	l.repeats.timer = nil
	if l.repeats.size > 0 {
		l.repeats.timer = time.AfterFunc(l.repeats.every, l.flushRepeats)
	}
}

// writeCounts writes the counts. It forgets a kind without refusals since the last time.
func (l *Log) writeCounts() error {
	for who, table := range l.tables {
		for kind, r := range table {
			if r.count == 0 {
				delete(table, kind)
				l.repeats.size--
				continue
			}
			if err := l.append(r.counted()); err != nil {
				return err
			}
			*r = repeat{like: r.like}
		}
		if len(table) > 0 {
			continue
		}
		delete(l.tables, who)
		if l.repeats.sessions[who.subject]--; l.repeats.sessions[who.subject] == 0 {
			delete(l.repeats.sessions, who.subject)
		}
	}
	return nil
}

// counted returns the line that counts. Its request is the last one.
func (r *repeat) counted() Record {
	rec := r.like
	rec.Note = fmt.Sprintf("and %d more", r.count)
	data := map[string]any{"count": r.count, "first": r.first.UTC().Format(timeFormat), "last": r.last.UTC().Format(timeFormat)}
	for key, n := range map[string]names{"hosts": r.hosts, "sessions": r.sessions} {
		if len(n.list) > 0 {
			data[key] = n.list
		}
		if n.more > 0 {
			data["more_"+key] = n.more
		}
	}
	rec.Data = data
	return rec
}
