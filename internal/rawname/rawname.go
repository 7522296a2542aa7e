// Package rawname encodes file names for JSON. A name on Linux is a string of bytes, but encoding/json replaces invalid
// UTF-8 by U+FFFD, so that different names become equal and can't be restored.
package rawname

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Quote returns s in Go's quotes if it is not UTF-8, otherwise unchanged. Different strings have different results: a
// string that looks quoted is quoted, too.
func Quote(s string) string {
	if special(s) {
		return strconv.Quote(s)
	}
	return s
}

// Unquote reverses Quote.
func Unquote(s string) string {
	if u, ok := unquote(s); ok && special(u) {
		return u
	}
	return s
}

func special(s string) bool {
	if !utf8.ValidString(s) {
		return true
	}
	u, ok := unquote(s)
	return ok && special(u)
}

func unquote(s string) (string, bool) {
	if !strings.HasPrefix(s, `"`) {
		return "", false
	}
	u, err := strconv.Unquote(s)
	return u, err == nil
}

// Quoted returns a copy of v with Quote applied to each string that encoding/json would write, including map keys. It
// copies values that marshal themselves unchanged.
func Quoted[T any](v T) T { return apply(v, Quote) }

// Unquoted reverses Quoted.
func Unquoted[T any](v T) T { return apply(v, Unquote) }

func apply[T any](v T, f func(string) string) T {
	out := reflect.ValueOf(&v).Elem()
	out.Set(mapStrings(out, f))
	return v
}

// mapStrings returns a copy of v with f applied to its strings.
func mapStrings(v reflect.Value, f func(string) string) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	out.Set(v)
	switch t := v.Type(); {
	case t.Kind() == reflect.Interface || t.Kind() == reflect.Pointer:
		if v.IsNil() {
			return out
		}
		inner := mapStrings(v.Elem(), f)
		if t.Kind() == reflect.Pointer {
			out.Set(reflect.New(t.Elem()))
			out.Elem().Set(inner)
		} else {
			out.Set(inner)
		}
	case marshals(t):
	case t.Kind() == reflect.String:
		out.SetString(f(v.String()))
	case t.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if t.Field(i).IsExported() && t.Field(i).Tag.Get("json") != "-" {
				out.Field(i).Set(mapStrings(v.Field(i), f))
			}
		}
	case t.Kind() == reflect.Slice && !v.IsNil() && t.Elem().Kind() != reflect.Uint8:
		out.Set(reflect.MakeSlice(t, v.Len(), v.Len()))
		for i := range v.Len() {
			out.Index(i).Set(mapStrings(v.Index(i), f))
		}
	case t.Kind() == reflect.Map && !v.IsNil():
		out.Set(reflect.MakeMapWithSize(t, v.Len()))
		for k, e := range v.Seq2() {
			out.SetMapIndex(mapStrings(k, f), mapStrings(e, f))
		}
	}
	return out
}

func marshals(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Marshaler]()) || p.Implements(reflect.TypeFor[encoding.TextMarshaler]())
}
