# Runs a command that installs packages, and keeps them from starting services and from creating a database cluster: tests
# start servers of their own.
# Arguments: the path of Debian's policy on services, that of a setting for PostgreSQL's packages, then the command. Existing
# files are kept.
set -e
policy=$1
setting=$2
shift 2
folder=${setting%/*}
made_policy= made_setting= made_folder=

clean_up() {
    [ -z "$made_policy" ] || rm -f "$policy"
    [ -z "$made_setting" ] || rm -f "$setting"
    # Keeps what the packages have put there.
    [ -z "$made_folder" ] || rmdir -p "$folder" 2>/dev/null || :
}
trap clean_up EXIT
# Without these, a shell that is ended by Ctrl-C would leave the files behind.
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

if [ ! -e "$policy" ] && [ ! -L "$policy" ]; then
    made_policy=yes
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
if [ ! -d "$folder" ]; then
    made_folder=yes
    mkdir -p "$folder"
fi
if [ ! -e "$setting" ] && [ ! -L "$setting" ]; then
    made_setting=yes
    echo 'create_main_cluster = false' >"$setting"
fi
"$@"
