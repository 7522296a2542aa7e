package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"slices"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/pflag"

	"github.com/slimctl/slimctl/inspect/report"
	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/internal/rawname"
)

// choice is the value of a flag that accepts one of a few words. A shell completes them.
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
	if c.value == nil { // pflag calls String on a zero value
		return ""
	}
	return *c.value
}

func (choice) Type() string { return "string" }

func (c choice) choices() []string { return c.words }

func (c choice) list() string { return english.WordSeries(c.words, "or") }

// addChoice adds a flag that accepts one of words. The default is *value, or else the first word. An empty usage
// becomes the list of words.
func addChoice(flags *pflag.FlagSet, value *string, name, usage string, words ...string) {
	*value = cmp.Or(*value, words[0])
	c := choice{value, words}
	if usage == "" {
		usage = c.list()
	}
	flags.Var(c, name, usage)
}

// addFormat adds --format with the values text and json.
func addFormat(flags *pflag.FlagSet, format *string) {
	addChoice(flags, format, "format", "", report.Text, report.JSON)
}

// runtimeChoice is the value of --runtime. It refuses podman with an explanation: the API of podman 4.3 attaches only
// to started containers and accepts no owner of a tmpfs.
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

// addProfile adds --profile and the flags that change the profile: --set and --allow-host.
func addProfile(flags *pflag.FlagSet, profile *string, set *[]string) {
	flags.StringVar(profile, "profile", "l0", "built-in profile `NAME`, or a file")
	addSetFlags(flags, set)
}

// setFlag is the value of a repeatable flag; each occurrence calls the function.
type setFlag func(string) error

func (f setFlag) Set(s string) error { return f(s) }
func (setFlag) String() string       { return "" }
func (setFlag) Type() string         { return "stringArray" }

// addSetFlags adds --set and --allow-host. The latter is short for --set policy.allowHosts=[…].
func addSetFlags(flags *pflag.FlagSet, set *[]string) {
	flags.Var(setFlag(func(s string) error {
		*set = append(*set, s)
		return nil
	}), "set", "set a key of the profile: `KEY.KEY=VALUE`")
	var hosts []string
	flags.Var(setFlag(func(s string) error {
		hosts = append(hosts, s)
		list, err := json.Marshal(hosts)
		*set = append(*set, "policy.allowHosts="+string(list))
		return err
	}), "allow-host", "allow only this `HOST`, such as '*.example.com' (repeatable)")
}

// printJSON writes v to standard output as indented JSON.
func (a *app) printJSON(v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := a.stdout.Write(rawname.Printable(b.Bytes()))
	return err
}
