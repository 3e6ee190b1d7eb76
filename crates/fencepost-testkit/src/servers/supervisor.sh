# Starts and kills one server as commanded on stdin. At the end of stdin, when the test's process has ended in any way, it
# kills the server and removes its directory. Arguments: the directory, then the command of the server.

# If a stopped process is orphaned, its whole process group gets a SIGHUP; and the reader of the replies may be gone.
trap '' HUP INT PIPE TERM
folder=$1
shift
server=

end_server() {
    if [ -n "$server" ]; then
        # Stopped first: it starts no further children, which would outlive it for a while.
        kill -STOP "$server" 2>/dev/null
        children=$(cat "/proc/$server/task/$server/children" 2>/dev/null)
        # One by one: some may have ended.
        for process in "$server" $children; do
            kill -9 "$process" 2>/dev/null
        done
        wait "$server" 2>/dev/null
        server=
    fi
}

while read -r command; do
    case $command in
    start)
        # Emptied before the reply, so that the output of an earlier start is not taken for that of this one.
        : >"$folder/output"
        "$@" </dev/null >>"$folder/output" 2>&1 &
        server=$!
        echo "$server"
        ;;
    status)
        # Reaps the server if it has ended, so that its process id is not taken for a live process.
        jobs >/dev/null 2>&1
        if [ -n "$server" ] && kill -0 "$server" 2>/dev/null; then
            echo alive
        else
            server=
            echo ended
        fi
        ;;
    kill)
        end_server
        echo killed
        ;;
    esac
done
end_server
# Removes what a killed server leaves outside of its directory.
if [ -f "$folder/at_end" ]; then
    sh "$folder/at_end" >/dev/null 2>&1
fi
rm -rf "$folder"
