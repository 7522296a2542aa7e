package supervisord

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
)

// boolean is what supervisord takes for one (supervisor/datatypes.py, boolean).
func boolean(s string) (value, ok bool) {
	switch strings.ToLower(s) {
	case "yes", "true", "on", "1":
		return true, true
	case "no", "false", "off", "0":
		return false, true
	}
	return false, false
}

func integer(s string) (int, bool) {
	n, err := strconv.Atoi(strings.TrimSpace(s))
	return n, err == nil
}

// pair is KEY="value" and what follows it. A placeholder counts as part of a word, since supervisord fills it in before
// it reads this.
var pair = regexp.MustCompile(`^\s*([\w/.+():%-]+)\s*=\s*("[^"]*"|'[^']*'|[\w/.+():%-]+)\s*(?:,|$)`)

// pairs reads KEY="value",KEY2=value as supervisord does (supervisor/datatypes.py, dict_of_key_value_pairs).
func pairs(text string) (map[string]string, error) {
	out := map[string]string{}
	for strings.TrimSpace(text) != "" {
		m := pair.FindStringSubmatch(text)
		if m == nil {
			return out, errors.New("want KEY=value")
		}
		out[m[1]] = strings.Trim(m[2], `'"`)
		text = text[len(m[0]):]
	}
	return out, nil
}
