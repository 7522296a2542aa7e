package guard

import "strings"

// checkNames refuses names that patterns can't match: non-ASCII ones, where two spellings may look or fold alike. MCP's
// own advice is narrower (2025-11-25, server/tools: 1 to 128 of A-Z a-z 0-9 _ - .), but not all servers follow it.
func checkNames(server, tool string) bool {
	for _, name := range []string{server, tool} {
		if name == "" || len(name) > 512 || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) {
			return false
		}
	}
	return !strings.Contains(server, ".")
}

// matchesExact matches case-sensitively. A server chooses its tools' names, so a tool that is called "github.read" may
// belong to any server. So a pattern with a dot is compared with server.tool only, one without with the tool's own name.
func matchesExact(patterns []string, server, tool string) bool {
	for _, p := range patterns {
		name := tool
		if strings.Contains(p, ".") {
			name = server + "." + tool
		}
		if matchGlob(p, name) {
			return true
		}
	}
	return false
}

// matchesAny matches each pattern with each form of the name in any case: blocking one tool too many is safe.
func matchesAny(patterns []string, server, tool string) bool {
	for _, p := range patterns {
		for _, name := range []string{tool, server + "." + tool, server + "__" + tool} {
			if matchGlob(strings.ToLower(p), strings.ToLower(name)) {
				return true
			}
		}
	}
	return false
}

// matchGlob matches the whole of s. * stands for any text, including none and slashes; ? stands for one byte. It
// backtracks to the last star only, so it takes at most len(pattern) * len(s) steps.
func matchGlob(pattern, s string) bool {
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
