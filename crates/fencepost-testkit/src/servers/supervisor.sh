# Starts and kills one server as commanded on stdin. At the end of stdin, when the test's process has ended in any way, it
# kills the server and removes its directory. Arguments: the directory, then the command of the server.

# If a stopped process is orphaned, its whole process group gets a SIGHUP; and the reader of the replies may be gone.
trap '' HUP INT PIPE TERM
folder=$1
shift
server=

end_server() {
    if [ -n "$server" ]; then
        kill -9 "$server" 2>/dev/null
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
rm -rf "$folder"
