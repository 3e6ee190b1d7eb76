/* Preloaded into a server: while the file DISK_IS_FULL contains something else than zero, no file grows. What has its space
 * already can be written, as on a real disk. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static volatile int64_t *full;

__attribute__((constructor)) static void map_flag(void) {
    const char *path = getenv("DISK_IS_FULL");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *full, PROT_READ, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) abort();
    full = page;
    close(file);
}

/* The log, on standard output and standard error, is not on the disk. */
static int has_no_space(int file, off_t end) {
    struct stat status;
    if (!full || !*full || file <= STDERR_FILENO || fstat(file, &status) || !S_ISREG(status.st_mode)) return 0;
    return end > status.st_size;
}

static ssize_t rejected(void) {
    errno = ENOSPC;
    return -1;
}

ssize_t write(int file, const void *bytes, size_t count) {
    if (full && *full && has_no_space(file, lseek(file, 0, SEEK_CUR) + (off_t)count)) return rejected();
    return syscall(SYS_write, file, bytes, count);
}

ssize_t pwrite(int file, const void *bytes, size_t count, off_t offset) {
    if (has_no_space(file, offset + (off_t)count)) return rejected();
    return syscall(SYS_pwrite64, file, bytes, count, offset);
}

ssize_t pwritev(int file, const struct iovec *parts, int count, off_t offset) {
    off_t end = offset;
    for (int part = 0; part < count; part++) end += (off_t)parts[part].iov_len;
    if (has_no_space(file, end)) return rejected();
    return syscall(SYS_pwritev, file, parts, count, offset, 0L);
}

int posix_fallocate(int file, off_t offset, off_t count) {
    if (has_no_space(file, offset + count)) return ENOSPC;
    return syscall(SYS_fallocate, file, 0, offset, count) ? errno : 0;
}

int fallocate(int file, int mode, off_t offset, off_t count) {
    if (mode == 0 && has_no_space(file, offset + count)) return (int)rejected();
    return (int)syscall(SYS_fallocate, file, mode, offset, count);
}

int ftruncate(int file, off_t end) {
    if (has_no_space(file, end)) return (int)rejected();
    return (int)syscall(SYS_ftruncate, file, end);
}

ssize_t pwrite64(int, const void *, size_t, off_t) __attribute__((alias("pwrite")));
ssize_t pwritev64(int, const struct iovec *, int, off_t) __attribute__((alias("pwritev")));
int posix_fallocate64(int, off_t, off_t) __attribute__((alias("posix_fallocate")));
int fallocate64(int, int, off_t, off_t) __attribute__((alias("fallocate")));
int ftruncate64(int, off_t) __attribute__((alias("ftruncate")));
