package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/pflag"

	"github.com/slimctl/slimctl/inspect/report"
	"github.com/slimctl/slimctl/inspect/sandbox"
)

// choice is a flag's value that is one of a few words; a shell completes them.
type choice struct {
	value *string
	words []string
}

func (c choice) Set(s string) error {
	if !slices.Contains(c.words, s) {
		return errors.New("want " + c.list())
	}
	*c.value = s
	return nil
}

func (c choice) String() string {
	if c.value == nil { // pflag's own zero value
		return ""
	}
	return *c.value
}

func (choice) Type() string { return "string" }

func (c choice) choices() []string { return c.words }

func (c choice) list() string { return english.WordSeries(c.words, "or") }

// addChoice adds a flag for one of a few words. The default is what value has, else the first of them. Without a usage they
// are it.
func addChoice(flags *pflag.FlagSet, value *string, name, usage string, words ...string) {
	*value = cmp.Or(*value, words[0])
	c := choice{value, words}
	if usage == "" {
		usage = c.list()
	}
	flags.Var(c, name, usage)
}

// addFormat adds --format for what has no other than text and JSON.
func addFormat(flags *pflag.FlagSet, format *string) {
	addChoice(flags, format, "format", "", report.Text, report.JSON)
}

// runtimeChoice is --runtime. podman gets an answer of its own: the API of 4.3 attaches to no container that has not started,
// and takes no owner of a tmpfs.
type runtimeChoice struct{ choice }

func (c runtimeChoice) Set(s string) error {
	if s == "podman" {
		return errors.New("podman is not supported, nor is its socket as DOCKER_HOST; use docker, or runc as root")
	}
	return c.choice.Set(s)
}

func addRuntime(flags *pflag.FlagSet, value *string, usage string) {
	*value = sandbox.Auto
	c := choice{value, []string{sandbox.Docker, sandbox.Runc, sandbox.Auto}}
	flags.Var(runtimeChoice{c}, "runtime", usage+c.list())
}

// addProfile adds --profile, and --set and --allow-host, which change it.
func addProfile(flags *pflag.FlagSet, profile *string, set *[]string) {
	flags.StringVar(profile, "profile", "l0", "profile: a built-in name, or a file")
	addSetFlags(flags, set)
}

// setFlag is a flag's value that may be repeated.
type setFlag func(string) error

func (f setFlag) Set(s string) error { return f(s) }
func (setFlag) String() string       { return "" }
func (setFlag) Type() string         { return "stringArray" }

// addSetFlags adds --set, and --allow-host, which is short for --set policy.allowHosts=[…].
func addSetFlags(flags *pflag.FlagSet, set *[]string) {
	flags.Var(setFlag(func(s string) error {
		*set = append(*set, s)
		return nil
	}), "set", "set a key of the profile, such as `KEY.KEY=VALUE`")
	var hosts []string
	flags.Var(setFlag(func(s string) error {
		hosts = append(hosts, s)
		list, err := json.Marshal(hosts)
		*set = append(*set, "policy.allowHosts="+string(list))
		return err
	}), "allow-host", "allow only this `HOST`: example.com or '*.example.com' (repeatable)")
}

// printJSON writes v to standard output.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
