#!/bin/bash
# Adds the CA of a proxy to the system's store.
set -e
cp "$1" /usr/local/share/ca-certificates/proxy-ca.crt
update-ca-certificates
