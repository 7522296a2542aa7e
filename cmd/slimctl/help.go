package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func init() { cobra.AddTemplateFunc("flagSections", flagSections) }

// helpWidth is the maximum width of a line of help, in columns.
const helpWidth = 80

const imagesTopic = `Every command takes an image in one of these forms:

  HOST/REPO:TAG              an image in a registry
  HOST/REPO@sha256:…         the same, by its digest
  oci:DIR[:TAG]              an OCI layout, as build's --output type=oci writes
  oci-archive:FILE[:TAG]     an OCI layout in a tar file
  docker-archive:FILE[:REF]  what docker save writes
  docker-daemon:REF          an image that Docker has
  standin:A|B|C              a stand-in of the AIO base, made on this machine
  standin-live:A|B|C         a stand-in that boots; takes root and mmdebstrap

DIR and FILE are paths. A stand-in needs no registry: it has the base's layout of
line A, B or C, and little of its content.

--base names the base of a build in one of these forms. Without it the profile
names the base. --platform takes os/arch, such as linux/arm64, and may be repeated
or hold a list with commas. Without it a build is for all platforms of the
profile, and other commands read all platforms of the image.

Log in to a registry with docker login, crane auth login or podman login:
slimctl reads the same files. It trusts the system's certificates and those in
SSL_CERT_FILE. --insecure allows plain HTTP to any registry.`

// helpTopic returns a command that only prints text.
func helpTopic(name, short, text string) *cobra.Command {
	return &cobra.Command{Use: name, Short: short, Long: text}
}

// fitHelp wraps the help of cmd and every command below it to helpWidth.
func fitHelp(cmd *cobra.Command) {
	cmd.Long = reflow(cmd.Long, helpWidth)
	if !cmd.HasParent() { // the others inherit it
		head, rest, _ := strings.Cut(cmd.UsageTemplate(), "{{if .HasAvailableLocalFlags}}")
		_, tail, _ := strings.Cut(rest, "{{if .HasHelpSubCommands}}")
		cmd.SetUsageTemplate(head + "{{flagSections .}}{{if .HasHelpSubCommands}}" + tail)
	}
	for _, c := range cmd.Commands() {
		fitHelp(c)
	}
}

// sections holds the flags that are not for every day, by the headings of a command's help.
var sections = []struct{ heading, flags string }{
	{"Profile and lock", "set payload lock locked no-lock"},
	{"Image and checks", "label annotation metadata-file verify"},
	{"Limits and rights", "cap-add cpus memory pids-limit read-only shm-size strict tmpfs user"},
	{"Network", "outgoing-proxy outgoing-proxy-file insecure builder"},
	{"Display and cache", "all color progress cache-dir help"},
}

// flagSections returns the help on the flags of cmd, with those for every day first.
func flagSections(cmd *cobra.Command) string {
	sets := make([]*pflag.FlagSet, len(sections)+1)
	for i := range sets {
		sets[i] = pflag.NewFlagSet("", pflag.ContinueOnError)
	}
	add := func(f *pflag.Flag) {
		i := slices.IndexFunc(sections, func(s struct{ heading, flags string }) bool { return slices.Contains(strings.Fields(s.flags), f.Name) })
		sets[i+1].AddFlag(f)
	}
	cmd.LocalFlags().VisitAll(add)
	cmd.InheritedFlags().VisitAll(add)
	var b strings.Builder
	for i, set := range sets {
		heading := "Flags"
		if i > 0 {
			heading = sections[i-1].heading
		}
		if set.HasAvailableFlags() {
			fmt.Fprintf(&b, "\n\n%s:\n%s", heading, strings.TrimRight(set.FlagUsagesWrapped(helpWidth), "\n"))
		}
	}
	return b.String()
}

// reflow wraps text to width. Lines that begin with a space, such as a table's, stay unchanged.
func reflow(text string, width int) string {
	var out []string
	column := -1 // end of the last line if it can be continued, otherwise -1
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		if line == "" || line[0] == ' ' || strings.HasSuffix(line, ":") && !strings.Contains(line, ". ") && column < 0 {
			out, column = append(out, line), -1
			continue
		}
		for word := range strings.FieldsSeq(line) {
			size := len([]rune(word))
			if column < 0 || column+1+size > width {
				out, column = append(out, word), size
				continue
			}
			out[len(out)-1] += " " + word
			column += 1 + size
		}
	}
	return strings.Join(out, "\n")
}
