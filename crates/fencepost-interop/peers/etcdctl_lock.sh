#!/bin/sh
# Takes turns with `etcdctl lock NAME COMMAND`, a process for each turn. The turn is this script again.
#
# usage: etcdctl_lock.sh PORT NAME FOLDER NUMBER
set -eu
export ETCDCTL_API=3

turn() {
    read -r count <"$FOLDER/counter" || [ -n "$count" ]
    sleep 0.002
    # The number is in the middle of a line of JSON: the revision at which the key was created.
    joined=$(etcdctl get "$ETCD_LOCK_KEY" -w json | sed 's/.*"create_revision":\([0-9]*\).*/\1/')
    printf %s $((count + 1)) >"$FOLDER/counter"
    echo "$(date +%s%3N) $count $joined" >>"$FOLDER/theirs-$NUMBER"
}

if [ -n "${ETCD_LOCK_KEY:-}" ]; then
    turn
    exit
fi
export ETCDCTL_ENDPOINTS="127.0.0.1:$1" FOLDER="$3" NUMBER="$4"
name=$2
: >"$FOLDER/theirs-$NUMBER"
until [ -e "$FOLDER/start" ]; do sleep 0.01; done
until [ -e "$FOLDER/stop" ]; do
    etcdctl lock "$name" sh "$0"
done
