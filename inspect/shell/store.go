package shell

import "slices"

// variable is a value with a name.
type variable struct {
	value
	exported bool
	// outer is true when it may be what the environment has.
	outer bool
}

// store holds variables, above those of up.
type store struct {
	up   *store
	vars map[string]variable
}

func (s *store) get(key string) (variable, bool) {
	for ; s != nil; s = s.up {
		if v, ok := s.vars[key]; ok {
			return v, true
		}
	}
	return variable{}, false
}

func (s *store) set(key string, v variable) {
	if s.vars == nil {
		s.vars = map[string]variable{}
	}
	s.vars[key] = v
}

// all flattens the store.
func (s *store) all() map[string]variable {
	out := map[string]variable{}
	for ; s != nil; s = s.up {
		for k, v := range s.vars {
			if _, ok := out[k]; !ok {
				out[k] = v
			}
		}
	}
	return out
}

// meet joins what two ways leave in a variable.
func meet(cond tri, why names, a, b variable) variable {
	picked, other := a, b
	if cond == no {
		picked, other = b, a
	}
	if cond != maybe && len(why) == 0 { // the other way is never taken
		return picked
	}
	out := picked
	out.data, out.why, out.head = a.data.with(b.data), a.why.with(b.why, why), a.head.with(b.head)
	out.fixed = a.fixed && b.fixed
	out.exported, out.outer = a.exported || b.exported, a.outer || b.outer
	if cond == maybe {
		if a.text != b.text || !other.known {
			out.known, out.text = false, ""
		}
		if a.list != nil || b.list != nil {
			out.known, out.list = false, slices.Concat(a.list, b.list)
			out.value = out.bounded()
		}
	}
	return out
}
