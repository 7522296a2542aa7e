package output

import (
	"encoding/base64"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/slimctl/slimctl/internal/lazyregexp"
)

// tokenHints has a part of every token: a fast rejection of texts without one.
var tokenHints = strings.Fields(`xox xapp- k_live_ k_test_ glpat- gldt- glrt- glptt- glcbt- gloas- ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ dckr_pat_ GOCSPX- whsec_ tskey- hvs. ya29.
	AIza npm_ hf_ shpat_ shpss_ pypi-AgEI lin_api_ r8_ gsk_ dop_v1_ doo_v1_ AGE-SECRET-KEY-1 EAAC xai- AKIA ASIA ABIA ACCA eyJ SG. hooks.slack.com sk- -----BEGIN`)

var schemeHints = strings.Fields("earer BEARER asic BASIC")

// tokens matches tokens by their prefixes, which are so unusual that most need no word boundary before them. A group is
// the part to hide.
var tokens = lazyregexp.New(strings.Join([]string{
	`(?:xox[bapeorscd]-|xapp-|[sr]k_live_|[sr]k_test_)[\w-]{10,}`,
	`(?:gl(?:pat|dt|rt|ptt|cbt|oas)-)[\w-]{16,}`,
	`(?:gh[pousr]_|github_pat_|dckr_pat_|GOCSPX-|whsec_|tskey-|hvs\.|ya29\.)[\w-]{20,}`,
	`(?:AIza|npm_|hf_|shp(?:at|ss)_|pypi-AgEI|lin_api_|r8_|gsk_|do[po]_v1_|AGE-SECRET-KEY-1)[\w-]{30,}`,
	`(?:EAAC|xai-)[\w-]{60,}`,
	`A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{16}`,
	`eyJ[\w-]*\.[\w-]*\.[\w-]*(?:\.[\w-]+){0,2}`, // RFC 7519, signed or encrypted
	`SG\.[\w-]{16,}\.[\w-]{16,}`,
	`hooks\.slack\.com/services/([\w/-]{16,})`,
	`\bsk-[\w-]{20,}`,
	`-----BEGIN[A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----(?:(?:-?[^-])*-----END[A-Z0-9 ]*-----|[\w+/=\\\s:,.-]*)`, // RFC 7468; cut off: up to what no key holds
}, "|"))

// credentials matches the schemes of HTTP's authorization: RFC 6750 and RFC 7617. The groups are the part to hide.
var credentials = lazyregexp.New(`(?:[Bb]earer|BEARER)(?: +|%20)([\w.~+/=%-]{8,})|(?:[Bb]asic|BASIC)(?: +|%20)([\w+/-]{4,}=*)`)

// findTokens finds tokens, but for words that look alike.
func findTokens(s string) (found []span) {
	hasHint := func(hint string) bool { return strings.Contains(s, hint) }
	if slices.ContainsFunc(tokenHints, hasHint) {
		for _, m := range tokens.FindAllStringSubmatchIndex(s, -1) {
			at := lastGroup(m)
			if text, short := strings.CutPrefix(s[at.from:at.to], "sk-"); !short || hasLongPart(text) {
				found = append(found, at)
			}
		}
	}
	if slices.ContainsFunc(schemeHints, hasHint) {
		for _, m := range credentials.FindAllStringSubmatchIndex(s, -1) {
			at := lastGroup(m)
			text := s[at.from:at.to]
			if bearer := m[2] >= 0; bearer && (len(text) >= 24 || strings.ContainsAny(text, "0123456789_=+/~")) || !bearer && isBasic(text) {
				found = append(found, at)
			}
		}
	}
	return found
}

// hasLongPart reports whether a run of letters and digits is too long for a word.
func hasLongPart(s string) bool {
	return slices.ContainsFunc(strings.FieldsFunc(s, func(r rune) bool { return r == '-' || r == '_' }), func(part string) bool {
		return len(part) >= 20 || len(part) >= 12 && strings.ContainsAny(part, "0123456789")
	})
}

// lastGroup returns the last group of a match, or the whole.
func lastGroup(m []int) span {
	for m[len(m)-1] < 0 {
		m = m[:len(m)-2]
	}
	return span{m[len(m)-2], m[len(m)-1]}
}

// isBasic reports whether a word after "basic" is USER:PASSWORD in base64, and not prose.
func isBasic(text string) bool {
	text = strings.ReplaceAll(strings.ReplaceAll(strings.TrimRight(text, "="), "-", "+"), "_", "/")
	decoded, err := base64.RawStdEncoding.DecodeString(text)
	return err == nil && utf8.Valid(decoded) && strings.Contains(string(decoded), ":")
}

// users matches scheme://user:password@host, and a long user without a password, which is a token.
var users = lazyregexp.New(`://([^/?#\\\s"'<>` + "`" + `:]*:[^/?#\\\s"'<>` + "`" + `]*|[^/?#\\\s"'<>` + "`" + `:]{16,})@`)

func findUsers(s string) (found []span) {
	if !strings.Contains(s, "://") || !strings.Contains(s, "@") {
		return nil
	}
	for _, m := range users.FindAllStringSubmatchIndex(s, -1) {
		found = append(found, lastGroup(m))
	}
	return found
}

// fieldLine matches a snapshot's field, with its content if that is on the line.
var fieldLine = lazyregexp.New(`^- (?:textbox|searchbox|spinbutton|combobox) "((?:[^"\\]|\\.)+)"[^:]*(?:: (.*))?`)

// findFields finds in a snapshot the content of fields for secrets: `- textbox "Password" [ref=e2]: value`, or the content
// in the lines below.
func (r *Redactor) findFields(s string) (found []span) {
	if !strings.Contains(s, "box \"") && !strings.Contains(s, "spinbutton \"") {
		return nil
	}
	inside := -1 // the indentation of the field to which the lines belong
	end := 0
	for line := range strings.Lines(s) {
		end += len(line)
		line, ended := strings.CutSuffix(line, "\n")
		to := end
		if ended {
			to--
		}
		text := strings.TrimLeft(line, " ")
		indent := len(line) - len(text)
		if indent > inside && inside >= 0 {
			for _, role := range []string{"- text: ", "- StaticText "} {
				if content, ok := strings.CutPrefix(text, role); ok {
					found = append(found, span{to - len(content), to})
				}
			}
			continue
		}
		inside = -1
		if m := fieldLine.FindStringSubmatch(text); m != nil && r.isSecretField(m[1]) {
			found = append(found, span{to - len(m[2]), to})
			inside = indent
		}
	}
	return found
}

// findNamed finds the values of NAME=value, "name": "value" and Name: value whose name indicates a secret.
func (r *Redactor) findNamed(s string) (found []span) {
	for at := 0; at < len(s); at++ {
		n := strings.IndexAny(s[at:], ":=%")
		if n < 0 {
			break
		}
		at += n
		if sp := r.findValue(s, at); sp.from < sp.to {
			found = append(found, sp)
			at = sp.to - 1
		}
	}
	return found
}

const (
	quotes    = "\"'`"
	nameBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-."
)

// findValue returns the value after the separator at a position, if the name before it indicates a secret.
func (r *Redactor) findValue(s string, at int) (none span) {
	value, sep := at+1, s[at]
	if sep == '%' { // = or : in a URL inside a URL
		if escaped := strings.ToUpper(s[at:min(at+3, len(s))]); escaped != "%3D" && escaped != "%3A" {
			return none
		}
		value, sep = at+3, '='
	}
	if sep == ':' && value < len(s) && (s[value] == ':' || s[value] == '/') {
		return none // :: and ://
	}
	name, before := cutName(s[max(0, at-80):at])
	g := r.grade(name)
	if g == plain {
		return none
	}
	rest := strings.TrimLeft(strings.TrimPrefix(strings.TrimPrefix(s[value:], "="), ">"), " \t")
	inQuery := strings.HasSuffix(before, "?") || strings.HasSuffix(before, "&")
	spaced := value+len(rest) < len(s) && strings.IndexByte(" \t", s[len(s)-len(rest)-1]) >= 0
	if rest == "" || rest[0] == '\n' || sep == '=' && spaced && inQuery { // an empty parameter at the end of a URL
		return none
	}
	value = len(s) - len(rest)
	if near := rest[:min(len(rest), 256)]; strings.Contains(near, "ref=e") { // no value contains a snapshot's ref
		if m := references.FindAllStringSubmatchIndex(near, 1); m != nil {
			rest = rest[:m[0][0]]
		}
	}
	if g == weak {
		rest = rest[:min(len(rest), 256)]
	}
	if m := quoted.FindAllStringSubmatchIndex(rest, 1); m != nil {
		at := lastGroup(m[0])
		value, rest = value+at.from, rest[at.from:at.to]
		if rest == "" || strings.IndexByte(" ]}", rest[0]) >= 0 { // it closes what began before the name
			return none
		}
	} else if g == header && sep == ':' {
		end := "\n\r"
		if before != "" && strings.IndexByte(quotes, before[len(before)-1]) >= 0 {
			end += quotes
		}
		rest = strings.TrimRight(cutAny(rest, end), " ")
	} else if rest = cutWord(rest, inQuery); isPlaceholder(rest, spaced) {
		return none
	}
	if g == weak && !isRandom(rest) {
		return none
	}
	return span{value, value + len(rest)}
}

// quoted matches a value in quotes, which may be escaped themselves, up to the closing quote or the line's end.
var quoted = func() *lazyregexp.Regexp {
	var forms []string
	for _, quote := range quotes {
		form := strings.ReplaceAll(`Q((?:[^Q\\\n]|\\.)*)|\\+Q((?:[^\\\n]|\\+[^Q\\\n])*)`, "Q", string(quote))
		forms = append(forms, form)
	}
	return lazyregexp.New("^(?:" + strings.Join(forms, "|") + ")")
}()

// cutName returns the name at the end of a text, without the spaces, the quote and the bracket after it, and what is
// before.
func cutName(s string) (name, before string) {
	s = strings.TrimRight(strings.TrimRight(s, " "), quotes+`\]`)
	before = strings.TrimRight(s, nameBytes)
	if name = s[len(before):]; strings.EqualFold(name, "key") && strings.HasSuffix(before, " ") { // "API key"
		before = strings.TrimRight(strings.TrimRight(before, " "), nameBytes)
		name = s[len(before):]
	}
	return name, before
}

func cutAny(s, end string) string {
	if i := strings.IndexAny(s, end); i >= 0 {
		return s[:i]
	}
	return s
}

// cutWord returns the unquoted value with which s begins; in a URL's query & ends it.
func cutWord(s string, inQuery bool) string {
	s = cutAny(s, " \t\r\n<>"+quotes)
	if inQuery {
		s = cutAny(s, "&#")
	}
	for {
		bare := strings.TrimRight(s, `,.;:!?\`)
		if n := len(bare) - 1; n >= 0 {
			if open := strings.IndexByte(")]}", bare[n]); open >= 0 && strings.IndexByte(bare, "([{"[open]) < 0 {
				bare = bare[:n] // the bracket was not opened in the value
			}
		}
		if len(bare) == len(s) {
			return s
		}
		s = bare
	}
}

// placeholder matches what documentation and forms have in place of a secret, proseWord also after a space.
var (
	placeholder = lazyregexp.New(`^(?i:null|nil|none|true|false|undefined|)$`)
	proseWord   = lazyregexp.New(`^(?i:string|number|boolean|bytes|str|int|any|required|optional|must|should|is|are|was|the|an?|your|yes|not?|n/a` +
		`|please|enter|change|reset|show|hide|forgot|minimum|at|least|and|or|for|we|you|this|that|what|how|why|when|with|of|to|in|uses?|used)$`)
)

func isPlaceholder(v string, spaced bool) bool {
	return v == Marker || placeholder.MatchString(v) || spaced && proseWord.MatchString(v)
}
