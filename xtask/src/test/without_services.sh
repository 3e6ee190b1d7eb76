# Runs a command that installs packages, and keeps their services from being started: tests start servers of their own.
# Arguments: the path of Debian's policy on services, then the command. An existing policy is kept.
set -e
policy=$1
shift
if [ ! -e "$policy" ] && [ ! -L "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    # Without these, a shell that is ended by Ctrl-C would leave the policy behind.
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
"$@"
