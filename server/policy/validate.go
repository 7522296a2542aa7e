package policy

import (
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// validateKeys checks each value by itself.
func (p *Policy) validateKeys() error { return eachKey(reflect.ValueOf(*p), "", validateKey) }

// validate checks what several values, or all of a list, must be together.
func (p *Policy) validate() error {
	l := p.Limits
	if l.TimeoutSec > l.MaxTimeoutSec {
		return newKeyError("limits.timeout_sec", "must lie between 1 and max_timeout_sec, which is %d, not %d", l.MaxTimeoutSec, l.TimeoutSec)
	}
	if l.SessionQueue > l.MaxCalls {
		return newKeyError("limits.session_queue", "must lie between 1 and max_calls, which is %d, not %d", l.MaxCalls, l.SessionQueue)
	}
	ap, err := netip.ParseAddrPort(p.Egress.Proxy)
	if err != nil || !ap.Addr().IsLoopback() || ap.Port() == 0 || ap.Addr().Is4In6() {
		return newKeyError("egress.proxy", "must be a loopback address and port, for instance 127.0.0.1:8118")
	}
	return p.validateLists()
}

// eachKey calls do for each key whose value is not an object.
func eachKey(v reflect.Value, path string, do func(key string, f reflect.StructField, v reflect.Value) error) error {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		key := path + f.Tag.Get("json")
		var err error
		if f.Type.Kind() == reflect.Struct {
			err = eachKey(v.Field(i), key+".", do)
		} else {
			err = do(key, f, v.Field(i))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// validateKey checks one key, of a list each value, against its field's tags.
func validateKey(key string, f reflect.StructField, v reflect.Value) error {
	var pattern *regexp.Regexp
	if text := f.Tag.Get("pattern"); text != "" {
		pattern = regexp.MustCompile(text)
	}
	if v.Kind() != reflect.Slice {
		return validateValue(key, f, pattern, v)
	}
	for i := range v.Len() {
		if err := validateValue(key+"["+strconv.Itoa(i)+"]", f, pattern, v.Index(i)); err != nil {
			return err
		}
	}
	return nil
}

func validateValue(key string, f reflect.StructField, pattern *regexp.Regexp, v reflect.Value) error {
	if least, most, ok := readBounds(f); ok && (v.Int() < least || v.Int() > most) {
		return newKeyError(key, "must lie between %d and %d, not %d", least, most, v.Int())
	}
	if words := f.Tag.Get("enum"); words != "" && !slices.Contains(strings.Split(words, ","), v.String()) {
		return newKeyError(key, "must be one of %s", strings.ReplaceAll(words, ",", ", "))
	}
	if pattern != nil && (!pattern.MatchString(v.String()) || strings.ContainsRune(v.String(), 0)) {
		return newKeyError(key, "must %s", f.Tag.Get("must"))
	}
	return nil
}

// readBounds returns the limits in the tags of a number's field.
func readBounds(f reflect.StructField) (least, most int64, ok bool) {
	least, err1 := strconv.ParseInt(f.Tag.Get("least"), 10, 64)
	most, err2 := strconv.ParseInt(f.Tag.Get("most"), 10, 64)
	return least, most, err1 == nil && err2 == nil
}

func (p *Policy) validateLists() error {
	if len(p.Open.AllowHosts) == 0 {
		return newKeyError("open.allow_hosts", `is empty, so nothing could be opened; write ["*"] for any public host, or names such as "example.com" and "*.example.com"`)
	}
	for i, c := range p.Commands {
		key := "commands[" + strconv.Itoa(i) + "]"
		if c != Read && len(findRows(c)) == 0 {
			return newKeyError(key, "is no subcommand of the grammar: %q", c)
		}
		if slices.Contains(p.Commands[:i], c) {
			return newKeyError(key, "is given twice: %q", c)
		}
	}
	for i, entry := range p.Egress.PrivateHosts {
		if err := p.validatePrivate(entry); err != nil {
			return newKeyError("egress.private_hosts["+strconv.Itoa(i)+"]", "%s", err)
		}
	}
	if err := validateDenied(p.Egress.DenyRanges); err != nil {
		return err
	}
	for i, expr := range p.Redaction.Patterns {
		key := "redaction.patterns[" + strconv.Itoa(i) + "]"
		re, err := regexp.Compile(expr)
		if err != nil {
			return newKeyError(key, "is no RE2 expression: %s", err)
		}
		if re.MatchString("") {
			return newKeyError(key, "matches the empty text")
		}
	}
	return nil
}
