#!/bin/bash
# Stand-in for line C (a guess): run.sh -> gem_init.sh -> gem.sh -> supervisord.
set -e
exec /opt/gem/gem_init.sh
