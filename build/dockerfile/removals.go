package dockerfile

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/image"
)

// mounted are the paths where BuildKit mounts something during a RUN, so rm can't remove them.
var mounted = []string{"/dev", "/proc", "/sys", "/etc/hosts", "/etc/resolv.conf"}

// checkRemovals refuses paths that a RUN can't remove.
func checkRemovals(removals []build.Remove) error {
	for _, s := range removals {
		if _, err := jsonString(s.Path); err != nil {
			return fmt.Errorf("step %q: %w", s, err)
		}
		for _, m := range mounted {
			if image.Within(m, s.Path) || image.Within(s.Path, m) {
				return fmt.Errorf("step %q: a RUN can't remove %s, BuildKit mounts its own there: use slimctl build", s, m)
			}
		}
	}
	return nil
}

// userName matches the arguments of USER that need no quotes.
var userName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$`)

// runUser returns the base's user, or "" if it is root. Only root may remove every file.
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
	if s.user != "" {
		d.comment("Only root may remove everything; the base's user comes back below.")
		d.line("USER 0:0")
	}
	d.run(byWhy(s.removals))
	if s.user != "" {
		d.line("USER %s", s.user)
	}
}

// run writes the one RUN of a stage, with the reasons as comments between its lines. It executes /bin/rm without a
// shell.
func (d *document) run(groups []reason) {
	d.line(`RUN ["/bin/rm", "-rf", "--", \`)
	for i, g := range groups {
		d.comment("%s", g.why)
		for j, p := range g.paths {
			end := `, \`
			if i == len(groups)-1 && j == len(g.paths)-1 {
				end = "]"
			}
			quoted, _ := jsonString(p) // checkRemovals has checked p
			d.line("    %s%s", quoted, end)
		}
	}
}

// reason groups the removals that share one why.
type reason struct {
	why   string
	paths []string
}

// byWhy groups removals by reason, in the order of first mention.
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
