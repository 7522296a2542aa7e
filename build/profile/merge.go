package profile

import (
	"maps"
	"reflect"
	"slices"
)

// merge returns child merged over parent, by the rules in Profile's comment.
func merge(parent, child *Profile) *Profile {
	out := *parent
	mergeStruct(reflect.ValueOf(&out).Elem(), reflect.ValueOf(*child))
	out.Name, out.Extends = child.Name, child.Extends
	return &out
}

// mergeStruct returns child's struct merged over the parent's. It changes no slice or map that the parent shares.
func mergeStruct(parent, child reflect.Value) {
	for _, f := range fieldsOf(parent.Type()) {
		p, c := parent.Field(f.index), child.Field(f.index)
		switch {
		case p.Kind() == reflect.Struct:
			mergeStruct(p, c)
		case c.IsZero():
		case p.IsZero():
			p.Set(clone(c))
		case p.Kind() == reflect.Map:
			p.Set(clone(p))
			for key, val := range c.Seq2() {
				p.SetMapIndex(key, val)
			}
		case p.Kind() == reflect.Pointer:
			both := reflect.New(p.Type().Elem())
			both.Elem().Set(p.Elem())
			mergeStruct(both.Elem(), c.Elem())
			p.Set(both)
		case f.merge == "union":
			p.Set(reflect.ValueOf(union(p.Interface().([]string), c.Interface().([]string))))
		case f.merge == "key":
			p.Set(mergeByKey(p, c))
		default:
			p.Set(c)
		}
	}
}

func clone(v reflect.Value) reflect.Value {
	switch x := v.Interface().(type) {
	case map[string]string:
		return reflect.ValueOf(maps.Clone(x))
	case []string:
		return reflect.ValueOf(slices.Clone(x))
	}
	return v
}

func union(a, b []string) []string {
	out := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// mergeByKey returns the parent's items whose key the child doesn't use, followed by the child's. An item with such a
// list of its own, as an overlay with its files, is merged with the parent's item in place.
func mergeByKey(parent, child reflect.Value) reflect.Value {
	nested := slices.ContainsFunc(fieldsOf(parent.Type().Elem()), func(f field) bool { return f.merge == "key" })
	used := map[string]reflect.Value{}
	for i := range child.Len() {
		used[child.Index(i).Interface().(keyed).key()] = child.Index(i)
	}
	out := reflect.MakeSlice(parent.Type(), 0, parent.Len()+child.Len())
	merged := map[string]bool{}
	for i := range parent.Len() {
		item := parent.Index(i)
		key := item.Interface().(keyed).key()
		switch again, ok := used[key]; {
		case !ok:
			out = reflect.Append(out, item)
		case nested:
			both := reflect.New(item.Type()).Elem()
			both.Set(item)
			mergeStruct(both, again)
			out, merged[key] = reflect.Append(out, both), true
		}
	}
	for i := range child.Len() {
		if item := child.Index(i); !merged[item.Interface().(keyed).key()] {
			out = reflect.Append(out, item)
		}
	}
	return out
}
