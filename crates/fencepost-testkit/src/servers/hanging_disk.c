/* Runs a server whose syncs of the disk hang while a file exists: hanging_disk FILE COMMAND...
 *
 * A server in Go makes its system calls by itself, so that nothing can be preloaded into it. A filter asks a second process
 * about each fdatasync instead, which answers when the file is gone; everything else in the server goes on meanwhile. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Answers each sync that the filter asks about. */
static void supervise(const char *file, int asked) {
    struct seccomp_notif call;
    for (;;) {
        memset(&call, 0, sizeof call);
        if (ioctl(asked, SECCOMP_IOCTL_NOTIF_RECV, &call)) {
            if (errno == EINTR || errno == ENOENT) continue;
            _exit(0);
        }
        while (access(file, F_OK) == 0) usleep(2000);
        struct seccomp_notif_resp answer = {.id = call.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
        ioctl(asked, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    }
}

static int filter_syncs(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fdatasync, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof rules / sizeof *rules, .filter = rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return -1;
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
}

static int pass(int socket, int *passed, int is_sender) {
    char byte = 0, space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    if (!is_sender) {
        if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&message)) return -1;
        memcpy(passed, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
        return 0;
    }
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), passed, sizeof(int));
    return sendmsg(socket, &message, 0) == 1 ? 0 : -1;
}

int main(int count, char **words) {
    int sockets[2], asked = -1;
    if (count < 3 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets)) return 1;
    pid_t server = getpid(), supervisor = fork();
    if (supervisor < 0) return 1;
    if (supervisor == 0) {
        /* It ends with the server. */
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != server || pass(sockets[0], &asked, 0)) _exit(1);
        close(sockets[0]);
        close(sockets[1]);
        supervise(words[1], asked);
    }
    asked = filter_syncs();
    if (asked < 0 || pass(sockets[1], &asked, 1)) {
        perror("the filter cannot be installed");
        return 1;
    }
    close(asked);
    execvp(words[2], words + 2);
    perror(words[2]);
    return 1;
}
