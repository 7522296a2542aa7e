package supervisord

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// anything is what supervisord takes as it comes, or what can't be checked here: directories, accounts.
func anything(string) bool { return true }

// programOptions say what supervisord takes for each option of a program, once placeholders are filled in
// (supervisor/options.py, _processes_from_section, and datatypes.py). One that it doesn't take, and it does not start. What
// isn't here it doesn't look at.
var programOptions = map[string]func(string) bool{
	"command": anything, "user": anything, "directory": anything, "environment": anything,
	"process_name":   func(s string) bool { return !strings.ContainsAny(strings.TrimFunc(s, isSpace), " :/") },
	"stdout_logfile": anything, "stderr_logfile": anything, "serverurl": anything, "events": anything, "result_handler": anything,
	"socket": anything, "socket_owner": anything, "socket_mode": isOctal, "socket_backlog": isInteger, "buffer_size": isInteger,
	"priority": isInteger, "startsecs": isInteger, "startretries": isInteger, "stopwaitsecs": isInteger,
	"numprocs": isInteger, "numprocs_start": isInteger,
	"autostart": isBoolean, "stopasgroup": isBoolean, "killasgroup": isBoolean, "redirect_stderr": isBoolean,
	"stdout_events_enabled": isBoolean, "stderr_events_enabled": isBoolean, "stdout_syslog": isBoolean, "stderr_syslog": isBoolean,
	"stdout_capture_maxbytes": isSize, "stderr_capture_maxbytes": isSize,
	"stdout_logfile_maxbytes": isSize, "stderr_logfile_maxbytes": isSize,
	"stdout_logfile_backups": isInteger, "stderr_logfile_backups": isInteger,
	"autorestart": func(s string) bool { return isBoolean(s) || strings.EqualFold(s, "unexpected") },
	"umask":       isOctal,
	"stopsignal":  func(s string) bool { return signal.MatchString(strings.ToUpper(strings.TrimFunc(s, isSpace))) },
	"exitcodes": func(s string) bool {
		for _, code := range strings.Split(s, ",") {
			if n, ok := integer(code); s != "" && (!ok || n < 0 || n > 255) {
				return false
			}
		}
		return true
	},
}

var (
	signal = regexp.MustCompile(`^([1-9][0-9]?|(SIG)?(HUP|INT|QUIT|ILL|TRAP|ABRT|IOT|BUS|FPE|KILL|USR1|SEGV|USR2|PIPE|ALRM|TERM|STKFLT|CHLD|CLD|` +
		`CONT|STOP|TSTP|TTIN|TTOU|URG|XCPU|XFSZ|VTALRM|PROF|WINCH|IO|POLL|PWR|SYS|RTMIN|RTMAX))$`)
	size = regexp.MustCompile(`(?i)^(.*?)(kb|mb|gb)?$`)
)

func isInteger(s string) bool { _, ok := integer(s); return ok }

func isBoolean(s string) bool { _, ok := boolean(s); return ok }

func isSize(s string) bool {
	m := size.FindStringSubmatch(s)
	return m != nil && isInteger(m[1])
}

// integer is Python's int for what fits into ours.
func integer(s string) (int, bool) {
	s = strings.TrimFunc(s, isSpace)
	digits := strings.TrimLeft(s, "+-")
	if len(s)-len(digits) > 1 || strings.HasPrefix(digits, "_") || strings.HasSuffix(digits, "_") || strings.Contains(digits, "__") {
		return 0, false
	}
	n, err := strconv.Atoi(strings.ReplaceAll(s, "_", ""))
	return n, err == nil
}

func boolean(s string) (value, ok bool) {
	switch lower(s) {
	case "yes", "true", "on", "1":
		return true, true
	case "no", "false", "off", "0":
		return false, true
	}
	return false, false
}

// mainOptions are the same for [supervisord].
var mainOptions = map[string]func(string) bool{
	"user": anything, "directory": anything, "logfile": anything, "pidfile": anything, "identifier": anything, "childlogdir": anything,
	"environment": anything, "minfds": isInteger, "minprocs": isInteger, "umask": isOctal, "logfile_maxbytes": isSize, "logfile_backups": isInteger,
	"loglevel": func(s string) bool { return level.MatchString(s) },
	"nodaemon": isBoolean, "silent": isBoolean, "nocleanup": isBoolean, "strip_ansi": isBoolean,
}

var groupOptions = map[string]func(string) bool{"programs": anything, "priority": isInteger}

var socketOptions = map[string]func(string) bool{
	"file": anything, "chown": anything, "username": anything, "password": anything, "chmod": isOctal,
	"port": func(s string) bool {
		n, ok := integer(s[strings.LastIndexByte(s, ':')+1:])
		return ok && n >= 1 && n <= 65535
	},
}

var level = regexp.MustCompile(`(?i)^(critical|error|warn|info|debug|trace|blather)$`)

func isOctal(s string) bool {
	s = strings.TrimPrefix(strings.TrimFunc(s, isSpace), "0o")
	_, err := strconv.ParseInt(s, 8, 64)
	return err == nil
}

// placeholders are the names besides ENV_X that supervisord fills in.
var placeholders = []string{"here", "host_node_name", "program_name", "group_name", "process_num", "numprocs"}

// known is an option's value with what is known put in.
func (r *reader) known(o option) string {
	value, _ := expand(o.value, func(name string) (string, bool) { return fromEnv(name, r.env) })
	return value
}

const dies = ": supervisord does not start"

// check notes the options of a section that supervisord does not start with.
func (r *reader) check(s *section, takes map[string]func(string) bool) {
	for _, name := range slices.Sorted(maps.Keys(takes)) {
		o, ok := r.ini.get(s, name)
		if !ok {
			continue
		}
		unknown := ""
		value, err := expand(o.value, func(name string) (string, bool) {
			if !strings.HasPrefix(name, "ENV_") && !slices.Contains(placeholders, name) {
				unknown = name
			}
			return fromEnv(name, r.env)
		})
		switch {
		case err != nil:
			r.noteAt(o.place, "[%s] %s: %v"+dies, s.name, name, err)
		case unknown != "":
			r.noteAt(o.place, "[%s] %s: nothing is known by the name %q"+dies, s.name, name, unknown)
		case !strings.Contains(value, "%(") && !takes[name](value):
			r.noteAt(o.place, "[%s] %s can't be %q"+dies, s.name, name, o.value)
		}
	}
}

func (r *reader) checkProgram(s *section, p *Program) {
	if p.Name == "" || strings.ContainsAny(p.Name, " :/") {
		r.noteAt(p.Place, "%q can't be a program's name"+dies, p.Name)
	}
	r.check(s, programOptions)
	if n, ok := integer(p.Processes); ok && n < 1 {
		r.noteAt(p.Place, "[%s] has numprocs %d, so nothing of it is started", s.name, n)
	} else if o, ok := r.ini.get(s, "command"); !ok {
		r.noteAt(p.Place, "[%s] has no command"+dies, s.name)
	} else if words, err := p.Args(r.env); err != nil {
		r.noteAt(o.place, "[%s] command: %v: it is not started", s.name, err)
	} else if len(words) == 0 {
		r.noteAt(o.place, "[%s] command: it is empty: it is not started", s.name)
	}
	if n, ok := integer(p.Processes); ok && n > 1 && !strings.Contains(r.text(s, "process_name"), "%(process_num)") {
		r.noteAt(p.Place, "[%s] has numprocs, and no process_name with process_num"+dies, s.name)
	}
	switch p.Kind {
	case "eventlistener":
		if r.text(s, "events") == "" {
			r.noteAt(p.Place, "[%s] has no events"+dies, s.name)
		}
		if f := r.text(s, "result_handler"); f != "" {
			r.noteAt(p.Place, "[%s] loads Python code by %q", s.name, f)
		}
	case "fcgi-program":
		if p.Socket == "" {
			r.noteAt(p.Place, "[%s] has no socket"+dies, s.name)
		}
	}
}
