package conf

import (
	"errors"
	"fmt"
	"strings"

	crossplane "github.com/nginxinc/nginx-go-crossplane"
)

// lexer assembles crossplane's tokens to statements. They differ from nginx's words only in ways that no base uses: "}"
// and Unicode's spaces end an unquoted word, and carriage returns are dropped.
type lexer struct{ tokens <-chan crossplane.NgxToken }

// next returns the words of a statement, the line of each, and its end: ";" or "{". The end of a block is "}" without
// words, the end of the file "". An error relates to the returned line.
func (l *lexer) next() (words []string, lines []int, end string, err error) {
	for t := range l.tokens {
		what := (*crossplane.ParseError)(nil)
		switch {
		case errors.As(t.Error, &what):
			return nil, append(lines, t.Line), "", errors.New(what.What)
		case t.IsQuoted || !strings.HasPrefix(t.Value, "#") && !strings.Contains(";{}", t.Value):
			words, lines = append(words, escapes.Replace(t.Value)), append(lines, t.Line)
		case t.Value[0] == '#':
		case (t.Value == "}") != (len(words) == 0):
			return nil, append(lines, t.Line), "", fmt.Errorf("unexpected %q", t.Value)
		default:
			return words, lines, t.Value, nil
		}
	}
	if len(words) > 0 {
		return nil, lines, "", errors.New(`the file ends inside of a statement: ";" or "}" is missing`)
	}
	return nil, nil, "", nil
}

// drain reads all tokens, since the lexer's goroutine needs a reader.
func (l *lexer) drain() {
	for range l.tokens {
	}
}

var escapes = strings.NewReplacer(`\"`, `"`, `\'`, `'`, `\\`, `\`, `\t`, "\t", `\r`, "\r", `\n`, "\n")
