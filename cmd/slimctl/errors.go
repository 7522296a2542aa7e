package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/slimctl/slimctl/build/overlays"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/build/resolve"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/rawname"
	"github.com/slimctl/slimctl/slim"
)

// The exit codes; exitHelp documents them.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitGate        = 3
	exitUnproven    = 4
	exitAuth        = 10
	exitNotFound    = 11
	exitRegistry    = 12
	exitIntegrity   = 13
	exitInterrupted = 130
)

const exitHelp = `Exit status:
  0    success
  1    error
  2    usage, or a profile that isn't valid
  3    the image has, or would keep, what the profile doesn't name
  4    verify found nothing, and doesn't know the base
  10   a registry refused the credentials
  11   the image or platform isn't there
  12   a registry can't be reached, limits us, or fails
  13   content isn't what its digest or integrity says
  130  interrupted`

var errInterrupted = errors.New("interrupted; unfinished outputs are unchanged")

func usageError(err error) error { return &slim.UsageError{Err: err} }

// reportError writes a command's error, and a hint if there is one. It returns the exit status.
func reportError(w io.Writer, cmd *cobra.Command, err error) int {
	code, hint := classifyError(cmd, err)
	writeError(w, err.Error())
	if hint != "" {
		fmt.Fprintln(w, "slimctl: hint: "+hint)
	}
	return code
}

// writeError writes an error of one or more lines. It indents a further line that begins with "slimctl:": a line feed
// in a file name can't forge a message.
func writeError(w io.Writer, text string) {
	for i, line := range strings.Split(text, "\n") {
		if line = rawname.Line(line); i == 0 {
			line = "slimctl: error: " + line
		} else if strings.HasPrefix(line, "slimctl:") {
			line = "  " + line
		}
		fmt.Fprintln(w, line)
	}
}

func classifyError(cmd *cobra.Command, err error) (code int, hint string) {
	var needs *resolve.NeedsError
	var digest *image.DigestError
	var platform *image.PlatformError
	var registry *image.RegistryError
	is := func(target error) bool { return errors.Is(err, target) }
	switch {
	case is(errInterrupted):
		return exitInterrupted, ""
	case errors.As(err, new(*slim.UsageError)):
		if cmd.Name() == "help" {
			cmd = cmd.Root()
		}
		return exitUsage, "see `" + cmd.CommandPath() + " --help`"
	case errors.As(err, new(profile.Errors)):
		return exitUsage, "docs/profile.md lists what a profile may hold; `slimctl profile show l0` is an example"
	case errors.As(err, &needs), errors.As(err, new(*slim.FindingsError)):
		return exitGate, ""
	case errors.As(err, &digest):
		return exitIntegrity, "the image was changed or damaged on its way; fetch it again"
	case is(overlays.ErrIntegrity):
		return exitIntegrity, ""
	case errors.As(err, &platform):
		return exitNotFound, platformHint(cmd, platform)
	case isBelow(err, cmd.Flag("cache-dir")):
		return exitError, "--cache-dir DIR names another place for the cache"
	case errors.As(err, new(*credentialsError)):
		return exitError, ""
	case is(image.ErrAuth):
		return exitAuth, "log in with `docker login HOST`, `crane auth login HOST` or `podman login HOST`; DOCKER_CONFIG names another directory for credentials"
	case is(image.ErrNotFound):
		return exitNotFound, ""
	case is(image.ErrCertificate):
		return exitRegistry, "name the registry's certificate authority with SSL_CERT_FILE=FILE; with plain HTTP use --insecure"
	case is(image.ErrRateLimited):
		return exitRegistry, "wait, or log in: registries allow more to those they know"
	case is(image.ErrRegistry), is(image.ErrUnreachable), is(image.ErrTimeout):
		if errors.As(err, &registry) && strings.HasPrefix(registry.Op, "read ") {
			hint = "an image that Docker has is docker-daemon:REF; without a registry, --base standin:B builds on a stand-in of the base"
			if cmd.Name() == "compose" {
				hint = "push the image first, or leave --resolve-image-digests out to name it by its tag"
			}
		}
		return exitRegistry, hint
	case is(overlays.ErrNoTool):
		return exitError, "--payload DIR takes a payload prepared elsewhere with `slimctl payload fetch`"
	}
	return exitError, ""
}

// isBelow reports whether err is a path error inside the directory that a flag names, or at one of its parents.
func isBelow(err error, dir *pflag.Flag) bool {
	var at *fs.PathError
	if dir == nil || dir.Value.String() == "" || !errors.As(err, &at) {
		return false
	}
	cache := filepath.Clean(dir.Value.String())
	return image.Within(at.Path, cache) || image.Within(cache, at.Path)
}

// platformHint returns the hint for an image that lacks the requested platform.
func platformHint(cmd *cobra.Command, e *image.PlatformError) string {
	have := make([]string, len(e.Have))
	for i, p := range e.Have {
		have[i] = rawname.Line(p.String())
	}
	switch {
	case cmd.Flags().Lookup("platform") == nil:
		return fmt.Sprintf("the image runs only on a machine of its platform; build one for this machine with `slimctl build --platform %s`", e.Want)
	case len(have) > 0:
		return "for these alone, pass --platform " + strings.Join(have, ",")
	}
	return ""
}
