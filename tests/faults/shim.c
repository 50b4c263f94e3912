/* Makes the k-th system call of a kind on files under a root fail, or stops, kills or steps a process before its effects on them.
 * Preloaded; armed from inside the process.
 *
 * An effect is a call that changes what others see: open for writing, write, copy, truncate, sync, rename, link, unlink, mkdir, rmdir.
 *
 * Built as: cc -shared -fPIC -O1 -o shim.so shim.c -ldl
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[PATH_MAX];
static char wanted[32];
static long countdown;     /* calls until one fails; 0: not armed */
static int error_number;   /* 0: a short write instead */
static int is_persistent;
static long n_fired, n_seen;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define MAX_FAILED 4096
static ino_t failed_syncs[MAX_FAILED];
static int n_failed_syncs, n_synced_again;

void shim_arm(const char *where, const char *call, long k, int number, int persistent) {
    pthread_mutex_lock(&lock);
    snprintf(root, sizeof root, "%s", where);
    snprintf(wanted, sizeof wanted, "%s", call);
    countdown = k;
    error_number = number;
    is_persistent = persistent;
    n_fired = n_seen = n_failed_syncs = n_synced_again = 0;
    pthread_mutex_unlock(&lock);
}
void shim_disarm(void) { countdown = 0; }
long shim_fired(void) { return n_fired; }
long shim_seen(void) { return n_seen; }
int shim_synced_again(void) { return n_synced_again; }

static int is_below(const char *path) {
    size_t n = strlen(root);
    if (path[0] == '/') return strncmp(path, root, n) == 0;
    return 0;
}
static int fd_is_below(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return is_below(path);
}
static int at_is_below(int at, const char *path) {
    return path[0] == '/' || at == AT_FDCWD ? is_below(path) : fd_is_below(at);
}

/* Effects of this process are counted; before one of them it gets a signal, or before each it asks whether it may. */
static int is_watched, n_effects, struck_at, strike, ask_fd = -1, go_fd = -1;
static char counted[4 * PATH_MAX];
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

/* Before effect number `at` of those whose line fits the pattern `which` get the signal `number`, and tell `ask` which it is; with 0 tell
 * them all, and get none. Where `go` is a descriptor, wait for a byte from it before each: g to go on, r to go on without asking again. */
void shim_watch(const char *where, const char *which, int at, int number, int ask, int go) {
    snprintf(root, sizeof root, "%s", where);
    snprintf(counted, sizeof counted, "%s", which);
    n_effects = 0;
    struck_at = at, strike = number, ask_fd = ask, go_fd = go;
    is_watched = 1;
}
void shim_unwatch(void) { is_watched = 0; }
int shim_effects(void) { return n_effects; }

static int is_counted(const char *call, const char *path) {
    char line[4 * PATH_MAX + 64];
    snprintf(line, sizeof line, "%s %s", call, path);
    return fnmatch(counted, line, FNM_NOESCAPE) == 0;
}
static void tell(const char *call, const char *path) {
    char line[4 * PATH_MAX + 64];
    int n = snprintf(line, sizeof line, "%s %s\n", call, path);
    if (syscall(SYS_write, ask_fd, line, (size_t)n) < 0) _exit(97);
}
static void effect(const char *call, const char *path) {
    pthread_mutex_lock(&one_at_a_time);
    if (is_watched && is_counted(call, path)) {
        n_effects++;
        if (go_fd >= 0) {
            char answer = 0;
            tell(call, path);
            while (syscall(SYS_read, go_fd, &answer, 1) < 0 && errno == EINTR) {}
            if (answer == 0) _exit(98);
            if (answer == 'r') is_watched = 0;
        } else if (struck_at == 0) {
            tell(call, path);
        } else if (n_effects == struck_at) {
            tell(call, path);
            syscall(SYS_tgkill, getpid(), (pid_t)syscall(SYS_gettid), strike);
        }
    }
    pthread_mutex_unlock(&one_at_a_time);
}
static void effect_on(int fd, const char *call) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return;
    path[n] = 0;
    if (is_below(path)) effect(call, path);
}
static void effect_at(int at, const char *path, const char *call) {
    char link[64], whole[2 * PATH_MAX];
    if (path[0] != '/' && at != AT_FDCWD) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        ssize_t n = readlink(link, whole, PATH_MAX - 1);
        if (n < 0) return;
        snprintf(whole + n, sizeof whole - (size_t)n, "/%s", path);
        path = whole;
    }
    if (is_below(path)) effect(call, path);
}
static void effect_on_two(const char *call, int a, const char *from, int b, const char *to) {
    char text[4 * PATH_MAX];
    if (!at_is_below(a, from) && !at_is_below(b, to)) return;
    snprintf(text, sizeof text, "%s -> %s", from, to);
    effect(call, text);
}
#define IS_CHANGING(flags) (((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) != 0)

/* Whether this call is to fail. */
static int fires(const char *call) {
    int fire = 0;
    pthread_mutex_lock(&lock);
    if (countdown > 0 && strcmp(call, wanted) == 0) {
        n_seen++;
        if (n_seen == countdown || (is_persistent && n_seen > countdown)) {
            fire = 1;
            n_fired++;
        }
    }
    pthread_mutex_unlock(&lock);
    return fire;
}
#define REAL(name, type) static type real; if (!real) real = (type)dlsym(RTLD_NEXT, name)
#define FAIL do { errno = error_number; return -1; } while (0)

typedef int (*open_t)(const char *, int, ...);
typedef int (*openat_t)(int, const char *, int, ...);
#define OPEN(NAME) \
int NAME(const char *path, int flags, ...) { \
    va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
    REAL(#NAME, open_t); \
    if (is_watched && IS_CHANGING(flags) && is_below(path)) effect("open", path); \
    if (countdown && is_below(path) && fires("open")) FAIL; \
    return real(path, flags, mode); }
OPEN(open)
OPEN(open64)
#define OPENAT(NAME) \
int NAME(int at, const char *path, int flags, ...) { \
    va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
    REAL(#NAME, openat_t); \
    if (is_watched && IS_CHANGING(flags)) effect_at(at, path, "open"); \
    if (countdown && is_below(path) && fires("open")) FAIL; \
    return real(at, path, flags, mode); }
OPENAT(openat)
OPENAT(openat64)

typedef ssize_t (*write_t)(int, const void *, size_t);
ssize_t write(int fd, const void *data, size_t n) {
    REAL("write", write_t);
    if (is_watched) effect_on(fd, "write");
    if (countdown && fd_is_below(fd) && fires("write")) { if (error_number) FAIL; n = n > 1 ? n / 2 : n; }
    return real(fd, data, n);
}
typedef ssize_t (*pwrite_t)(int, const void *, size_t, off_t);
#define PWRITE(NAME) \
ssize_t NAME(int fd, const void *data, size_t n, off_t at) { \
    REAL(#NAME, pwrite_t); \
    if (is_watched) effect_on(fd, "pwrite"); \
    if (countdown && fd_is_below(fd) && fires("write")) { if (error_number) FAIL; n = n > 1 ? n / 2 : n; } \
    return real(fd, data, n, at); }
PWRITE(pwrite)
PWRITE(pwrite64)
typedef ssize_t (*writev_t)(int, const struct iovec *, int);
ssize_t writev(int fd, const struct iovec *parts, int n) {
    REAL("writev", writev_t);
    if (is_watched) effect_on(fd, "write");
    if (countdown && fd_is_below(fd) && fires("write")) {
        if (error_number) FAIL;
        struct iovec first = parts[0];
        if (first.iov_len > 1) first.iov_len /= 2;
        return real(fd, &first, 1);
    }
    return real(fd, parts, n);
}
typedef int (*fd_t)(int);
static int sync_of(int fd, fd_t real) {
    if (is_watched) effect_on(fd, "fsync");
    struct stat found;
    if (countdown && fd_is_below(fd) && fstat(fd, &found) == 0 && S_ISREG(found.st_mode)) {
        pthread_mutex_lock(&lock);
        for (int i = 0; i < n_failed_syncs; i++)
            if (failed_syncs[i] == found.st_ino) n_synced_again++;
        pthread_mutex_unlock(&lock);
        if (fires("fsync")) {
            pthread_mutex_lock(&lock);
            if (n_failed_syncs < MAX_FAILED) failed_syncs[n_failed_syncs++] = found.st_ino;
            pthread_mutex_unlock(&lock);
            FAIL;
        }
    } else if (countdown && fd_is_below(fd) && fires("fsync-directory")) {
        FAIL;
    }
    return real(fd);
}
int fsync(int fd) { REAL("fsync", fd_t); return sync_of(fd, real); }
int fdatasync(int fd) { REAL("fdatasync", fd_t); return sync_of(fd, real); }
int close(int fd) {
    REAL("close", fd_t);
    if (countdown && fd_is_below(fd) && fires("close")) { real(fd); FAIL; }  /* as Linux does, it is closed all the same */
    return real(fd);
}
typedef int (*two_paths_t)(const char *, const char *);
int rename(const char *from, const char *to) {
    REAL("rename", two_paths_t);
    if (is_watched) effect_on_two("rename", AT_FDCWD, from, AT_FDCWD, to);
    if (countdown && is_below(to) && fires("rename")) FAIL;
    return real(from, to);
}
typedef int (*renameat_t)(int, const char *, int, const char *);
int renameat(int a, const char *from, int b, const char *to) {
    REAL("renameat", renameat_t);
    if (is_watched) effect_on_two("rename", a, from, b, to);
    if (countdown && is_below(to) && fires("rename")) FAIL;
    return real(a, from, b, to);
}
typedef int (*renameat2_t)(int, const char *, int, const char *, unsigned);
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
    REAL("renameat2", renameat2_t);
    if (is_watched) effect_on_two("rename", a, from, b, to);
    if (countdown && is_below(to) && fires("rename")) FAIL;
    return real(a, from, b, to, flags);
}
int link(const char *from, const char *to) {
    REAL("link", two_paths_t);
    if (is_watched) effect_on_two("link", AT_FDCWD, from, AT_FDCWD, to);
    if (countdown && is_below(to) && fires("link")) FAIL;
    return real(from, to);
}
typedef int (*linkat_t)(int, const char *, int, const char *, int);
int linkat(int a, const char *from, int b, const char *to, int flags) {
    REAL("linkat", linkat_t);
    if (is_watched) effect_on_two("link", a, from, b, to);
    if (countdown && is_below(to) && fires("link")) FAIL;
    return real(a, from, b, to, flags);
}
typedef int (*mkdir_t)(const char *, mode_t);
int mkdir(const char *path, mode_t mode) {
    REAL("mkdir", mkdir_t);
    if (is_watched && is_below(path)) effect("mkdir", path);
    if (countdown && is_below(path) && fires("mkdir")) FAIL;
    return real(path, mode);
}
typedef int (*mkdirat_t)(int, const char *, mode_t);
int mkdirat(int at, const char *path, mode_t mode) {
    REAL("mkdirat", mkdirat_t);
    if (is_watched) effect_at(at, path, "mkdir");
    if (countdown && is_below(path) && fires("mkdir")) FAIL;
    return real(at, path, mode);
}
typedef int (*path_t)(const char *);
int unlink(const char *path) {
    REAL("unlink", path_t);
    if (is_watched && is_below(path)) effect("unlink", path);
    if (countdown && is_below(path) && fires("unlink")) FAIL;
    return real(path);
}
int rmdir(const char *path) {
    REAL("rmdir", path_t);
    if (is_watched && is_below(path)) effect("rmdir", path);
    if (countdown && is_below(path) && fires("rmdir")) FAIL;
    return real(path);
}
typedef int (*unlinkat_t)(int, const char *, int);
int unlinkat(int at, const char *path, int flags) {
    REAL("unlinkat", unlinkat_t);
    if (is_watched) effect_at(at, path, flags & AT_REMOVEDIR ? "rmdir" : "unlink");
    if (countdown && at_is_below(at, path) && fires(flags & AT_REMOVEDIR ? "rmdir" : "unlink")) FAIL;
    return real(at, path, flags);
}
typedef int (*truncate_t)(int, off_t);
#define TRUNCATE(NAME) \
int NAME(int fd, off_t size) { \
    REAL(#NAME, truncate_t); \
    if (is_watched) effect_on(fd, "ftruncate"); \
    return real(fd, size); }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)
typedef ssize_t (*copy_t)(int, off64_t *, int, off64_t *, size_t, unsigned);
ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *where, size_t n, unsigned flags) {
    REAL("copy_file_range", copy_t);
    if (is_watched) effect_on(to, "copy");
    return real(from, at, to, where, n, flags);
}
typedef int (*stat64_t)(const char *, struct stat64 *);
#define STAT(NAME) \
int NAME(const char *path, struct stat64 *found) { \
    REAL(#NAME, stat64_t); \
    if (countdown && is_below(path) && fires("stat")) FAIL; \
    return real(path, found); }
STAT(stat64)
STAT(lstat64)
typedef DIR *(*opendir_t)(const char *);
DIR *opendir(const char *path) {
    REAL("opendir", opendir_t);
    if (countdown && is_below(path) && fires("opendir")) { errno = error_number; return NULL; }
    return real(path);
}
typedef ssize_t (*read_t)(int, void *, size_t);
ssize_t read(int fd, void *data, size_t n) {
    REAL("read", read_t);
    if (countdown && fd_is_below(fd) && fires("read")) FAIL;
    return real(fd, data, n);
}
typedef ssize_t (*pread64_t)(int, void *, size_t, off64_t);
ssize_t pread64(int fd, void *data, size_t n, off64_t at) {
    REAL("pread64", pread64_t);
    if (countdown && fd_is_below(fd) && fires("read")) FAIL;
    return real(fd, data, n, at);
}
