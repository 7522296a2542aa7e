package guard

import "strings"

// wellFormed refuses names that globs can't speak of: other than ASCII, where two spellings may look or fold alike, and
// a server's with a slash, which would make server/tool ambiguous. MCP's own advice is narrower (2025-11-25,
// server/tools: 1 to 128 of A-Z a-z 0-9 _ - .), but servers don't all keep to it.
func wellFormed(server, tool, alias string) bool {
	for _, name := range []string{server, tool, alias} {
		if name == "" || len(name) > 512 || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) {
			return false
		}
	}
	return !strings.Contains(server, "/")
}

// names are all that a tool is called by.
func names(server, tool, alias string) []string {
	return []string{tool, alias, server + "/" + tool}
}

// allowed matches with exact case. A server chooses its tools' names, so what one calls "github/read" is no tool of the
// server github: a pattern with a slash is held against server/tool alone.
func allowed(patterns []string, server, tool, alias string) bool {
	for _, p := range patterns {
		if strings.Contains(p, "/") {
			if glob(p, server+"/"+tool) {
				return true
			}
		} else if glob(p, tool) || glob(p, alias) {
			return true
		}
	}
	return false
}

// matchesAny matches each pattern with each name in any case: to take one tool too many is the safe side.
func matchesAny(patterns, names []string) bool {
	for _, p := range patterns {
		for _, name := range names {
			if glob(strings.ToLower(p), strings.ToLower(name)) {
				return true
			}
		}
	}
	return false
}

// glob matches the whole of s; * stands for any text, also for none and for one with slashes, ? for one byte. It goes
// back to the last star only, so it takes at most len(pattern) * len(s) steps.
func glob(pattern, s string) bool {
	p, i, star, mark := 0, 0, -1, 0
	for i < len(s) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, i
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == s[i]):
			p++
			i++
		case star >= 0:
			mark++
			p, i = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}
