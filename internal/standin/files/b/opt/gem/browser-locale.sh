#!/bin/bash
# Prints the locale pak that fits BROWSER_LANG.
set -e
lang=${BROWSER_LANG:-en-US}
for name in "$lang" "${lang%%-*}" en-US; do
  if [ -f "/opt/browser/locales/$name.pak" ]; then
    echo "$name"
    exit 0
  fi
done
