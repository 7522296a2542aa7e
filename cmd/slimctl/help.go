package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// helpWidth is the maximum width of a line of help, in columns.
const helpWidth = 80

const imagesTopic = `Every command that takes an image takes it in one of these forms:

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

--base names the base of a build in one of these forms; the profile names it
otherwise. --platform takes os/arch, such as linux/arm64, and may be repeated or
hold a list with commas. A build is for all platforms of the profile, and a
reading command reads all that the image has, unless --platform says less.

Log in to a registry with docker login, crane auth login or podman login:
slimctl reads the same files. --insecure allows plain HTTP to any registry.`

// helpTopic returns a command that only prints text.
func helpTopic(name, short, text string) *cobra.Command {
	return &cobra.Command{Use: name, Short: short, Long: text}
}

// fitHelp wraps the help of cmd and every command below it to helpWidth.
func fitHelp(cmd *cobra.Command) {
	cmd.Long = reflow(cmd.Long, helpWidth)
	usage := cmd.UsageTemplate()
	for _, flags := range []string{".LocalFlags", ".InheritedFlags"} {
		usage = strings.ReplaceAll(usage, flags+".FlagUsages ", "("+flags+".FlagUsagesWrapped 80) ")
	}
	cmd.SetUsageTemplate(usage)
	for _, c := range cmd.Commands() {
		fitHelp(c)
	}
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
