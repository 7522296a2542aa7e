#!/bin/bash
set -e
# Any Chrome flag can come in by these two variables.
readarray -t cmd_args < <(xargs -n1 printf '%s\n' <<<"$BROWSER_COMMANDLINE_ARGS")
readarray -t extra_args < <(xargs -n1 printf '%s\n' <<<"$BROWSER_EXTRA_ARGS")
exec "$BROWSER_EXECUTABLE_PATH" --user-data-dir="/home/$USER/.config/browser" "${cmd_args[@]}" "${extra_args[@]}"
