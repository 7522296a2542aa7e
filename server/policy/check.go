package policy

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/slimctl/slimctl/internal/nearest"
)

// Command is an argv that the grammar admits, in canonical form.
type Command struct {
	Name    string   // the subcommand
	Args    []string // positionals, without the name of a file to write
	Options []string // long names, each followed by its value, if any
	File    string   // screenshot and pdf only: the requested file name, may be empty
}

// Argv returns the arguments for agent-browser after the forced options. path is the absolute path for a screenshot or
// a PDF, and empty for other commands.
func (c Command) Argv(path string) []string {
	argv := append([]string{c.Name}, c.Args...)
	if path != "" {
		argv = append(argv, path)
	}
	return append(argv, c.Options...)
}

// Check checks argv against the grammar of one generation. The returned Command may be run. If several rules refuse
// argv, the class decides: TIMEOUT, BUDGET_EXCEEDED, SANDBOX_VIOLATION, POLICY_BLOCKED, INVALID_PARAMS.
func (p *Policy) Check(gen Generation, argv []string) (Command, *Refusal) {
	if r := checkSize(argv); r != nil {
		return Command{}, r
	}
	argv = Canonical(argv)
	unclean := checkCharacters(argv)
	row, r := p.findRow(argv)
	if r = Worst(unclean, r); r != nil && row.name == "" {
		return Command{}, r
	}
	c := reader{policy: p, gen: gen, row: row}
	c.checkWords(argv)
	if r = Worst(append([]*Refusal{r}, c.refusals...)...); r != nil {
		return Command{}, r
	}
	return c.command(), nil
}

func checkSize(argv []string) *Refusal {
	if len(argv) == 0 {
		return refuse(InvalidParams, "argv.empty", "argv is empty; give a subcommand and its arguments, for instance [\"snapshot\",\"-i\"]")
	}
	if len(argv) > maxArgs {
		return refuse(BudgetExceeded, "argv.count", "argv has more than %d elements; send fewer", maxArgs)
	}
	total := 0
	for i, a := range argv {
		if len(a) > maxArgBytes {
			return refuse(BudgetExceeded, "argv.size", "argv[%d] is larger than %d bytes; send less", i, maxArgBytes)
		}
		total += len(a)
	}
	if total > maxArgvSize {
		return refuse(BudgetExceeded, "argv.size", "argv is larger than %d bytes in all; send less", maxArgvSize)
	}
	return nil
}

// checkCharacters refuses NUL, which can't be passed, U+FFFD, which replaces invalid bytes, and control characters
// other than line feed and tab.
func checkCharacters(argv []string) *Refusal {
	for i, a := range argv {
		if !utf8.ValidString(a) || strings.ContainsRune(a, utf8.RuneError) {
			return blocked("argv.encoding", "argv[%d] is not clean UTF-8; send whole characters", i)
		}
		for _, c := range a {
			if unicode.IsControl(c) && c != '\n' && c != '\t' {
				return blocked("argv.control", "argv[%d] holds a control character; remove it", i)
			}
		}
	}
	return nil
}

// instead names what helps in the place of a command that is switched off by default.
var instead = map[string]string{
	"get": "snapshot -c shows the page's text; ", "is": "snapshot -i shows what is checked or disabled; ", "pdf": "screenshot --full keeps the whole page; ",
	"scroll": "snapshot shows the whole page, and click scrolls by itself; ", "back": "open the address; ", "forward": "open the address; ", "reload": "open the address; ",
}

// findRow returns the row for argv, or a refusal with a hint.
func (p *Policy) findRow(argv []string) (command, *Refusal) {
	sub := argv[0]
	if bare, _, _ := strings.Cut(sub, "="); forced[bare] {
		return command{}, blocked("option.forced", "%s is an option that browser-shell sets itself; leave it out (the session comes from session_id)", bare)
	}
	if isFlagLike(sub) || strings.HasPrefix(sub, "-") {
		return command{}, blocked("command.first", "argv[0] must be the subcommand; one of %s", p.allowedList())
	}
	rows := findRows(sub)
	if !slices.Contains(p.Commands, sub) {
		if len(rows) > 0 {
			return command{}, blocked("command.off", "%s is switched off by the policy; %sone of %s", sub, instead[sub], p.allowedList())
		}
		return command{}, blocked("command.not-allowed", "this subcommand is not allowed%s; one of %s", p.suggestNearest(sub), p.allowedList())
	}
	if len(rows) > 1 { // distinguished by their first word
		for _, r := range rows {
			if len(argv) > 1 {
				if _, no := r.args[0](p, "", argv[1]); no == nil {
					return r, nil
				}
			}
		}
		return command{}, blocked("value.word", "argv[1] is no known kind of %s", sub)
	}
	return rows[0], nil
}

func findRows(sub string) []command {
	var rows []command
	for _, r := range table {
		if r.name == sub {
			rows = append(rows, r)
		}
	}
	return rows
}

func (p *Policy) allowedList() string { return strings.Join(p.Commands, ", ") }

// suggestNearest returns a hint for a mistyped subcommand.
func (p *Policy) suggestNearest(sub string) string {
	if right, ok := nearMisses[strings.ReplaceAll(strings.ToLower(sub), "_", "-")]; ok {
		if slices.Contains(p.Commands, "get") {
			return " (did you mean " + right + "?)"
		}
		return " (" + right + " is switched off by the policy; the answers of open and snapshot say where the page is)"
	}
	if words := strings.Fields(sub); len(words) > 1 && slices.Contains(p.Commands, words[0]) {
		return fmt.Sprintf(" (send %s and each of its arguments as an element of its own)", words[0])
	}
	if best := nearest.Word(sub, p.Commands); best != "" {
		return fmt.Sprintf(" (did you mean %s?)", best)
	}
	return ""
}

// reader checks one argv against one row.
type reader struct {
	policy   *Policy
	gen      Generation
	row      command
	args     []string
	options  []string
	forms    int // number of options that are not modifiers
	seen     map[string]bool
	refusals []*Refusal
}

func (c *reader) refuse(r *Refusal) { c.refusals = append(c.refusals, r) }

func (c *reader) checkWords(argv []string) {
	var positionals, at []string
	for i := 1; i < len(argv); i++ {
		place := fmt.Sprintf("argv[%d]", i)
		if !isFlagLike(argv[i]) {
			positionals, at = append(positionals, argv[i]), append(at, place)
			continue
		}
		opt := c.admitOption(place, argv[i])
		if opt == nil || opt.value == nil {
			continue
		}
		if i++; i == len(argv) {
			c.refuse(blocked("option.value", "the option %s needs a value after it", opt.long))
			break
		}
		c.value(opt, fmt.Sprintf("argv[%d]", i), argv[i])
	}
	c.positionals(positionals, at)
	for _, o := range c.row.options {
		if o.withArgs && c.seen[o.long] && len(positionals) == 0 {
			c.refuse(refuse(InvalidParams, c.row.name+".form", "%s goes with a selector", o.long))
		}
	}
	if c.row.oneForm && len(positionals)+c.forms != 1 {
		c.refuse(refuse(InvalidParams, c.row.name+".form", "%s takes exactly one of: a selector, milliseconds, %s", c.row.name, c.formList()))
	}
}

// admitOption admits an option, or refuses it by the most specific rule.
func (c *reader) admitOption(at, word string) *option {
	for _, o := range c.row.options {
		if word != o.long && (o.short == "" || word != o.short) || o.only != "" && o.only != c.gen {
			continue
		}
		if c.seen[o.long] {
			c.refuse(blocked("option.twice", "the option %s is given twice", o.long))
		}
		if c.seen == nil {
			c.seen = map[string]bool{}
		}
		c.seen[o.long] = true
		c.options = append(c.options, o.long)
		if !o.modifier {
			c.forms++
		}
		return &o
	}
	bare, _, _ := strings.Cut(word, "=")
	d, own := c.row.denied[bare]
	switch {
	case own:
		c.refuse(refuse(d.code, d.rule, "%s: %s", at, d.why))
	case forced[bare]:
		c.refuse(blocked("option.forced", "%s is an option that browser-shell sets itself; leave it out (the session comes from session_id)", at))
	default:
		c.refuse(blocked("option.not-allowed", "%s looks like an option that %s does not take%s; text that looks like an option cannot be passed", at, c.row.name, c.optionList()))
	}
	return nil
}

func (c *reader) value(o *option, at, s string) {
	if isFlagLike(s) {
		c.refuse(blocked("option.value", "%s must be the value of %s but looks like an option", at, o.long))
		return
	}
	v, r := o.value(c.policy, at, s)
	if r != nil {
		c.refuse(r)
		return
	}
	c.options = append(c.options, v)
}

func (c *reader) positionals(words, at []string) {
	least, most := len(c.row.args)-c.row.optional, len(c.row.args)+c.row.repeat
	if len(words) < least || len(words) > most {
		c.refuse(refuse(InvalidParams, "argv.arity", "%s takes %s, not %d", c.row.name, span(least, most), len(words)))
	}
	for i, w := range words {
		if len(c.row.args) == 0 {
			return
		}
		v, r := c.row.args[min(i, len(c.row.args)-1)](c.policy, at[i], w)
		if r != nil {
			c.refuse(r)
			continue
		}
		c.args = append(c.args, v)
	}
	if c.row.name == "screenshot" && len(words) == 2 && (shotName.MatchString(words[0]) || !shotName.MatchString(words[1])) {
		c.refuse(refuse(InvalidParams, "screenshot.form", "screenshot takes a selector, then a file name"))
	}
}

func (c *reader) command() Command {
	cmd := Command{Name: c.row.name, Args: c.args, Options: c.options}
	n := len(cmd.Args)
	if n > 0 && (cmd.Name == "screenshot" && shotName.MatchString(cmd.Args[n-1]) || cmd.Name == "pdf") {
		cmd.Args, cmd.File = cmd.Args[:n-1], cmd.Args[n-1]
	}
	return cmd
}

func (c *reader) optionList() string {
	var names []string
	for _, o := range c.row.options {
		if o.only == "" || o.only == c.gen {
			names = append(names, o.long)
		}
	}
	if len(names) == 0 {
		return " (it takes none)"
	}
	return " (it takes " + strings.Join(names, ", ") + ")"
}

func (c *reader) formList() string {
	var names []string
	for _, o := range c.row.options {
		if !o.modifier {
			names = append(names, o.long)
		}
	}
	return strings.Join(names, ", ")
}

func span(least, most int) string {
	switch {
	case most == 0:
		return "no arguments"
	case most == 1 && least == 1:
		return "exactly 1 argument"
	case least == most:
		return fmt.Sprintf("exactly %d arguments", most)
	}
	return fmt.Sprintf("%d to %d arguments", least, most)
}
