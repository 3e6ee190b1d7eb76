# Starts and kills one server as it is told on stdin. When nobody is left who could tell it, because the test's process
# is gone in whatever way, it kills the server and removes its folder. Arguments: the folder, then the server's command.

# A stopped server that loses its session brings its whole process group a SIGHUP; nobody may be listening any more.
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

while read -r word; do
    case $word in
    start)
        # Emptied before the answer: nobody may take the words of an earlier start for those of this one.
        : >"$folder/output"
        "$@" </dev/null >>"$folder/output" 2>&1 &
        server=$!
        echo "$server"
        ;;
    look)
        # Reaps the server if it has ended by itself, so that its number is not taken for a living process.
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
