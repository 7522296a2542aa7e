package dockerfile

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/image"
)

// mounted are the paths that BuildKit mounts something on while a RUN runs, so that rm can't remove them.
var mounted = []string{"/dev", "/proc", "/sys", "/etc/hosts", "/etc/resolv.conf"}

func checkRemovals(removals []build.Remove, o Options) error {
	for _, s := range removals {
		if image.Clean(s.Path) != s.Path || s.Path == "/" || strings.Contains(s.Path, "\x00") {
			return fmt.Errorf("step %q: %q isn't an absolute, clean path below the root", s, s.Path)
		}
		if o.Whiteouts {
			continue
		}
		if _, err := jsonString(s.Path); err != nil {
			return fmt.Errorf("step %q: %w", s, err)
		}
		for _, m := range mounted {
			if image.Within(m, s.Path) || image.Within(s.Path, m) {
				return fmt.Errorf("step %q: a RUN can't remove %s, BuildKit mounts its own there: use --whiteouts, or slimctl build",
					s, m)
			}
		}
	}
	return nil
}

// userName is what USER takes with nothing to quote.
var userName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$`)

// runUser gives the base's user when that isn't root, who alone may remove everything.
func runUser(r *build.Recipe) (string, error) {
	config, err := r.Base.Image.ConfigFile()
	if err != nil {
		return "", fmt.Errorf("config of %s: %w", r.Base.Reference, err)
	}
	user := config.Config.User
	switch name, _, _ := strings.Cut(user, ":"); {
	case name == "" && user == "", name == "root", name == "0":
		return "", nil
	case !userName.MatchString(user):
		return "", fmt.Errorf("config of %s: user %q can't be written in a Dockerfile", r.Base.Reference, user)
	}
	return user, nil
}

func (d *document) removals(s *stage) {
	if len(s.removals) == 0 {
		return
	}
	d.blank()
	if s.whiteouts != "" {
		d.comment("The removals as whiteouts (OCI image specification, layer.md). BuildKit itself doesn't obey them: a RUN "+
			"after this line would still see the removed paths, and so may an image that is loaded into a local store. What "+
			"is pushed or written as an archive is right. %s removes:", s.whiteouts)
		for _, g := range byWhy(s.removals) {
			d.comment("- %s", g.why)
			for _, p := range g.paths {
				d.line("#     %s", oneLine(p))
			}
		}
		d.line("ADD --link %s /", s.whiteouts)
		return
	}
	if s.user != "" {
		d.comment("Only root may remove everything; the base's user comes back below.")
		d.line("USER 0:0")
	}
	d.run(byWhy(s.removals))
	if s.user != "" {
		d.line("USER %s", s.user)
	}
}

// run writes the one RUN of a stage; comments between its lines say why. It has no shell: /bin/rm is executed itself.
func (d *document) run(groups []reason) {
	d.line(`RUN ["/bin/rm", "-rf", "--", \`)
	for i, g := range groups {
		d.comment("%s", g.why)
		for j, p := range g.paths {
			end := `, \`
			if i == len(groups)-1 && j == len(g.paths)-1 {
				end = "]"
			}
			quoted, _ := jsonString(p) // checkRemovals saw to it
			d.line("    %s%s", quoted, end)
		}
	}
}

// reason is one why with all that it is the reason for.
type reason struct {
	why   string
	paths []string
}

// byWhy keeps the order of first mention.
func byWhy(removals []build.Remove) []reason {
	var out []reason
	at := map[string]int{}
	for _, s := range removals {
		i, ok := at[s.Why]
		if !ok {
			i = len(out)
			at[s.Why] = i
			out = append(out, reason{why: s.Why})
		}
		out[i].paths = append(out[i].paths, s.Path)
	}
	return out
}
