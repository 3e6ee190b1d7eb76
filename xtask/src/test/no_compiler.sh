#!/bin/sh
# Stands for the C compiler and the `ar` of another system where nothing is linked: says that it is like ours, and makes
# empty files.
case " $* " in
    *" -? "*) exit 1 ;;
    *" -E "*) exec cc "$@" ;;
esac
for word; do
    case $word in *.o | *.a) : >"${word#-o}" ;; esac
done
