package privilege

import (
	"fmt"
	"strconv"
	"strings"
)

// The databases of accounts: passwd(5), shadow(5), group(5), gshadow(5).
const (
	passwdFile  = "/etc/passwd"
	shadowFile  = "/etc/shadow"
	groupFile   = "/etc/group"
	gshadowFile = "/etc/gshadow"
)

// maxMembers limits the members of a group.
const maxMembers = 200

// States of a password.
const (
	locked = "locked"
	none   = "none"
	set    = "set"
)

// record is a line of one of the databases.
type record struct {
	line   int
	fields []string
}

// records splits a database into its lines. Of two lines with one name the first counts, as in glibc's nss_files, which
// also skips blank lines and those that begin with "#".
func (r *reader) records(file string, fields int) []record {
	var out []record
	first := map[string]int{}
	line := 0
	for l := range strings.Lines(r.files[file]) {
		line++
		l = strings.TrimLeft(strings.TrimSuffix(l, "\n"), " \t")
		if l == "" || l[0] == '#' {
			continue
		}
		rec := record{line, strings.SplitN(l, ":", fields)}
		name := rec.fields[0]
		if n := strings.Count(l, ":") + 1; n != fields {
			r.addNote(file, line, fmt.Sprintf("the line has %d fields, not %d", n, fields)) // it counts nevertheless
		}
		if name == "" || name[0] == '+' || name[0] == '-' {
			r.addNote(file, line, "not the name of an account: a lookup elsewhere, or nothing")
			continue
		}
		if at, twice := first[name]; twice {
			r.addNote(file, line, fmt.Sprintf("%s has no effect: line %d has the same name", name, at))
			continue
		}
		first[name] = line
		for len(rec.fields) < fields {
			rec.fields = append(rec.fields, "")
		}
		out = append(out, rec)
	}
	return out
}

// id parses a uid or gid. glibc accepts white space and a sign before it, other programs don't.
func (r *reader) id(file string, rec record, text string) (int, bool) {
	if n, err := strconv.ParseUint(text, 10, 32); err == nil {
		return int(n), true
	}
	n, err := strconv.ParseInt(strings.TrimLeft(text, " \t"), 10, 33)
	if err != nil || n < 0 {
		r.addNote(file, rec.line, fmt.Sprintf("%s has no effect: its id is %q", rec.fields[0], text))
		return 0, false
	}
	r.addNote(file, rec.line, fmt.Sprintf("%s: the id %q is a number for some programs and none for others", rec.fields[0], text))
	return int(n), true
}

// users reads the accounts and the states of their passwords.
func (r *reader) users() {
	shadow := map[string]string{}
	for _, rec := range r.records(shadowFile, 9) {
		shadow[rec.fields[0]] = rec.fields[1]
	}
	for _, rec := range r.records(passwdFile, 7) {
		f := rec.fields
		uid, ok := r.id(passwdFile, rec, f[2])
		if !ok {
			continue
		}
		gid, ok := r.id(passwdFile, rec, f[3])
		if !ok {
			continue
		}
		u := User{Name: f[0], UID: uid, GID: gid, Home: f[5], Shell: f[6], Password: password(f[1]), Place: r.img.Place(passwdFile, rec.line)}
		if f[1] == "x" {
			hash, ok := shadow[f[0]]
			u.Password = password(hash)
			if !ok {
				u.Password = locked
			}
			delete(shadow, f[0])
		}
		r.report.Users = append(r.report.Users, u)
	}
}

// password returns the state of a password field: a value that is not certainly locked may be a hash.
func password(field string) string {
	switch {
	case field == "":
		return none
	case field[0] == '*' || field[0] == '!':
		return locked
	}
	return set
}

// groups reads the groups.
func (r *reader) groups() {
	shadow := map[string]string{}
	for _, rec := range r.records(gshadowFile, 4) {
		shadow[rec.fields[0]] = rec.fields[1]
	}
	for _, rec := range r.records(groupFile, 4) {
		f := rec.fields
		gid, ok := r.id(groupFile, rec, f[2])
		if !ok {
			continue
		}
		g := Group{Name: f[0], GID: gid, Place: r.img.Place(groupFile, rec.line)}
		for m := range strings.SplitSeq(f[3], ",") {
			if m = strings.TrimSpace(m); m == "" {
				continue
			}
			if len(g.Members) == maxMembers {
				r.addNote(groupFile, rec.line, fmt.Sprintf("%s has more than %d members: only these are told", f[0], maxMembers))
				break
			}
			g.Members = append(g.Members, m)
		}
		hash := f[1]
		if hash == "x" {
			hash = shadow[f[0]]
		}
		if password(hash) == set { // without a password only members may join
			g.Password = set
		}
		r.report.Groups = append(r.report.Groups, g)
	}
}
