#!/bin/sh
# Replaces the C compiler and the `ar` of another system where nothing is linked: claims to be like ours, and writes empty
# files.
case " $* " in
    *" -? "*) exit 1 ;;
    *" -E "*) exec cc "$@" ;;
esac
for word; do
    case $word in *.o | *.a) : >"${word#-o}" ;; esac
done
