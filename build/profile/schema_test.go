package profile

import (
	"embed"
	"encoding"
	"encoding/json"
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"reflect"
	"strconv"
	"strings"

	"github.com/invopop/jsonschema"
)

// schemaID names the schema of version 1 of the format. It is an identifier; nothing need answer there.
const schemaID = "https://github.com/slimctl/slimctl/schema/profile/v1"

// sources are read for the doc comments, which become the schema's descriptions.
//
//go:embed profile.go keep.go duration.go
var sources embed.FS

// schemaFile is what slimctl profile schema prints.
const schemaFile = "../../profiles/schema.json"

// makeSchema returns the JSON Schema (draft 2020-12) of a profile file, made from the Go types, their doc comments and tags.
// It says all that a schema can: it knows nothing of files on disk, of other profiles, or of two keys that clash.
func makeSchema() ([]byte, error) {
	comments, err := docComments()
	if err != nil {
		return nil, err
	}
	r := &jsonschema.Reflector{
		FieldNameTag:   "yaml",
		ExpandedStruct: true,
		LookupComment: func(t reflect.Type, field string) string {
			return comments[strings.TrimSuffix(t.Name()+"."+field, ".")]
		},
		Mapper: func(t reflect.Type) *jsonschema.Schema {
			if t.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
				return &jsonschema.Schema{Type: "string"}
			}
			return nil
		},
	}
	root := r.Reflect(Profile{})
	root.ID = schemaID
	root.Title = "slimctl profile"
	s := schema{root: root, done: map[reflect.Type]bool{}}
	s.object(root, reflect.TypeFor[Profile](), true)
	root.If = &jsonschema.Schema{Not: &jsonschema.Schema{Required: []string{"extends"}}}
	root.Then = required(reflect.TypeFor[Profile]())
	out, err := json.MarshalIndent(root, "", "  ")
	return append(out, '\n'), err
}

// schema adds to a reflected schema what the struct tags say.
type schema struct {
	root *jsonschema.Schema
	done map[reflect.Type]bool
}

// object adds the rules of a struct type. What a section that `extends` merges requires is added by required.
func (s schema) object(o *jsonschema.Schema, t reflect.Type, merged bool) {
	if s.done[t] {
		return
	}
	s.done[t] = true
	fields := fieldsOf(t)
	o.Required = nil
	for _, f := range fields {
		if f.required && (f.each || !merged) {
			o.Required = append(o.Required, f.key)
		}
		if f.needs != "" {
			o.DependentRequired = map[string][]string{f.key: {f.needs}}
		}
		p, _ := o.Properties.Get(f.key)
		s.property(p, t.Field(f.index).Type, f, merged)
	}
	for _, group := range groups(fields) {
		for _, key := range group {
			o.OneOf = append(o.OneOf, &jsonschema.Schema{Required: []string{key}})
		}
	}
}

func (s schema) property(p *jsonschema.Schema, t reflect.Type, f field, merged bool) {
	one := uint64(1)
	switch {
	case t.Kind() == reflect.Slice:
		if f.nonEmpty {
			p.MinItems = &one
		}
		p.UniqueItems = f.unique
		s.element(p.Items, t.Elem(), f)
	case t.Kind() == reflect.Map:
		if f.nonEmpty {
			p.MinProperties = &one
		}
		p.PropertyNames = &jsonschema.Schema{}
		constrain(p.PropertyNames, rules[f.keys])
		s.element(p.AdditionalProperties, t.Elem(), f)
	case t.Kind() == reflect.Bool:
		p.Const = true
	case t.Kind() == reflect.Int:
		p.Minimum, p.Maximum = json.Number(strconv.Itoa(f.low)), json.Number(strconv.Itoa(f.high))
	default:
		if inner, ok := section(t); ok {
			s.object(s.root.Definitions[inner.Name()], inner, merged)
			return
		}
		constrain(p, rules[f.check])
	}
}

func (s schema) element(e *jsonschema.Schema, t reflect.Type, f field) {
	if t.Kind() == reflect.Struct {
		s.object(s.root.Definitions[t.Name()], t, false)
		return
	}
	constrain(e, rules[f.check])
}

func constrain(p *jsonschema.Schema, r rule) {
	limit := uint64(r.limit())
	for _, v := range r.values {
		p.Enum = append(p.Enum, v)
	}
	if r.values != nil {
		return
	}
	p.MaxLength = &limit
	p.Pattern = r.pattern.String()
	if r.reject != nil {
		p.Not = &jsonschema.Schema{Pattern: r.reject.String()}
	}
}

// required lists the keys that a profile without `extends` must have, in all its sections.
func required(t reflect.Type) *jsonschema.Schema {
	out := &jsonschema.Schema{}
	for _, f := range fieldsOf(t) {
		if f.required && !f.each {
			out.Required = append(out.Required, f.key)
		}
		inner, ok := section(t.Field(f.index).Type)
		if !ok {
			continue
		}
		if deeper := required(inner); deeper.Required != nil || deeper.Properties != nil {
			if out.Properties == nil {
				out.Properties = jsonschema.NewProperties()
			}
			out.Properties.Set(f.key, deeper)
		}
	}
	return out
}

// docComments maps Type and Type.Field to what their comments say, starting with the key instead of the Go name.
func docComments() (map[string]string, error) {
	out := map[string]string{}
	files, err := sources.ReadDir(".")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		data, err := sources.ReadFile(file.Name())
		if err != nil {
			return nil, err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file.Name(), data, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		for _, decl := range parsed.Decls {
			if gen, ok := decl.(*ast.GenDecl); ok && gen.Tok == token.TYPE {
				typeComments(gen, out)
			}
		}
	}
	return out, nil
}

func typeComments(gen *ast.GenDecl, out map[string]string) {
	for _, spec := range gen.Specs {
		typ := spec.(*ast.TypeSpec)
		out[typ.Name.Name] = oneLine(gen.Doc.Text())
		fields, ok := typ.Type.(*ast.StructType)
		if !ok {
			continue
		}
		for _, f := range fields.Fields.List {
			if f.Tag == nil {
				continue
			}
			tag := reflect.StructTag(strings.Trim(f.Tag.Value, "`"))
			key, _, _ := strings.Cut(tag.Get("yaml"), ",")
			name := f.Names[0].Name
			doc := oneLine(f.Doc.Text())
			if rest, ok := strings.CutPrefix(doc, name+" "); ok {
				doc = key + " " + rest
			}
			out[typ.Name.Name+"."+name] = doc
		}
	}
}

func oneLine(doc string) string {
	var p comment.Parser
	text := (&comment.Printer{TextWidth: -1}).Text(p.Parse(doc))
	return strings.Join(strings.Fields(string(text)), " ")
}
