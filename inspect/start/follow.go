package start

import (
	"context"
	"maps"
	"path"
	"slices"
	"strings"
)

// Follow follows the commands of the programs that the start leads to. It adds to the report the variables that they
// read, the variables that start and stop them, and the words of the environment that they run. It returns, by name,
// the programs that each command runs in the end, with their arguments as far as they are known for a container started
// with the image's own environment: ${NAME} or ? stands for the rest. Call it once, after Read.
func (r *Report) Follow(ctx context.Context, jobs []Job) (map[string][][]string, error) {
	line := Line(r.img)
	out := map[string][][]string{}
	for _, j := range jobs {
		argv, decide, err := r.walk.Follow(ctx, j)
		if err != nil {
			return nil, err
		}
		for _, name := range decide {
			if !slices.Contains(r.decides[name], j.Name) {
				r.decides[name] = append(r.decides[name], j.Name)
			}
		}
		out[j.Name] = argv
		r.addProgramReads(j, argv, line)
	}
	r.copyFindings()
	if !r.Clean {
		r.setSwitches()
	}
	return out, nil
}

// addProgramReads adds the variables that programs in languages other than the shell's read.
func (r *Report) addProgramReads(j Job, argv [][]string, line string) {
	for _, known := range table {
		is := known.by != "" && line != "" && strings.Contains(known.lines, line)
		if !is || j.Name != known.by && !slices.ContainsFunc(argv, func(a []string) bool { return path.Base(a[0]) == known.by }) {
			continue
		}
		r.walk.AddRead(known.names, j.Place)
		if known.how != "" {
			h := Hook{Variable: known.names, How: known.how, Place: j.Place}
			if !slices.ContainsFunc(r.walk.Hooks, func(o Hook) bool { return o.Variable == h.Variable && o.How == h.How }) {
				r.walk.Hooks = append(r.walk.Hooks, h)
			}
		}
	}
}

// Values returns the known environment of the programs, for a container started with the image's own environment,
// config.
func (r *Report) Values(config map[string]string) map[string]string {
	out := map[string]string{}
	if !r.Clean {
		maps.Copy(out, config)
	}
	for _, v := range r.Environment {
		if v.Known {
			out[v.Name] = v.Value
		} else {
			delete(out, v.Name)
		}
	}
	return out
}
