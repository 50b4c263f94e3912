/* A file system of one file, the disk, kept in memory. Writes that carry a pattern fail when told to.
 *
 * Built as: cc -O1 -o lossy_disk lossy_disk.c
 * Run as: lossy_disk MOUNTPOINT NBYTES
 *
 * It speaks the protocol of /dev/fuse, so that no library is needed. Commands come as lines on the standard input,
 * and each is answered by a line:
 *
 *   arm SKIP COUNT HEX...  let SKIP matching writes pass and fail the next COUNT (-1: all) that hold one of the patterns
 *   heal                   fail nothing more; the answer is how many writes matched, failed, and were seen at all
 *
 * It ends with its standard input, and takes the mount down.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_WRITE (1 << 20)
#define FILE_ID 2
#define NAME "disk"
#define MAX_PATTERNS 8
#define MAX_PATTERN 64

static char *disk;
static uint64_t nbytes;
static int device;
static long skip, count, n_matched, n_failed, n_writes;
static unsigned char patterns[MAX_PATTERNS][MAX_PATTERN];
static size_t lengths[MAX_PATTERNS];
static int n_patterns;

static void reply(uint64_t unique, int error, const void *data, size_t size) {
    struct fuse_out_header head = {sizeof head + (error ? 0 : size), -error, unique};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)data, size}};
    if (writev(device, parts, error || !size ? 1 : 2) < 0 && errno != ENOENT) perror("reply"); /* ENOENT: interrupted */
}

static struct fuse_attr attributes(uint64_t id) {
    struct fuse_attr found = {.ino = id, .nlink = 1, .blksize = 4096};
    found.mode = id == FILE_ID ? S_IFREG | 0600 : S_IFDIR | 0700;
    found.size = id == FILE_ID ? nbytes : 0;
    found.blocks = found.size / 512;
    return found;
}

/* Whether a write is to fail. */
static int fails(const char *data, size_t size) {
    n_writes++;
    for (int i = 0; i < n_patterns; i++) {
        if (!memmem(data, size, patterns[i], lengths[i])) continue;
        n_matched++;
        if (skip > 0) {
            skip--;
            return 0;
        }
        if (count == 0) return 0;
        if (count > 0) count--;
        n_failed++;
        return 1;
    }
    return 0;
}

static void answer(char *request) {
    struct fuse_in_header *head = (void *)request;
    void *body = head + 1;
    switch (head->opcode) {
    case FUSE_INIT: {
        struct fuse_init_out out = {.major = FUSE_KERNEL_VERSION, .minor = 31, .max_readahead = 1 << 17};
        out.flags = FUSE_BIG_WRITES | FUSE_MAX_PAGES;
        out.max_write = MAX_WRITE;
        out.max_pages = MAX_WRITE / 4096;
        out.max_background = 16;
        out.congestion_threshold = 12;
        reply(head->unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_LOOKUP: {
        struct fuse_entry_out out = {.nodeid = FILE_ID, .attr = attributes(FILE_ID)};
        reply(head->unique, head->nodeid == FUSE_ROOT_ID && !strcmp(body, NAME) ? 0 : ENOENT, &out, sizeof out);
        break;
    }
    case FUSE_GETATTR:
    case FUSE_SETATTR: {
        struct fuse_attr_out out = {.attr = attributes(head->nodeid)};
        reply(head->unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_OPEN: { /* direct: the kernel keeps no page of it, which would outlive a write that failed */
        struct fuse_open_out out = {.open_flags = FOPEN_DIRECT_IO};
        reply(head->unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_READ: {
        struct fuse_read_in *in = body;
        uint64_t left = in->offset < nbytes ? nbytes - in->offset : 0;
        reply(head->unique, 0, disk + in->offset, left < in->size ? left : in->size);
        break;
    }
    case FUSE_WRITE: {
        struct fuse_write_in *in = body;
        struct fuse_write_out out = {.size = in->size};
        char *data = (char *)(in + 1);
        if (in->offset + in->size > nbytes) {
            reply(head->unique, ENOSPC, 0, 0);
        } else if (fails(data, in->size)) {
            reply(head->unique, EIO, 0, 0);
        } else {
            memcpy(disk + in->offset, data, in->size);
            reply(head->unique, 0, &out, sizeof out);
        }
        break;
    }
    case FUSE_FSYNC:
    case FUSE_FLUSH:
    case FUSE_RELEASE:
        reply(head->unique, 0, 0, 0);
        break;
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_INTERRUPT:
        break;
    default:
        reply(head->unique, ENOSYS, 0, 0);
    }
}

static void obey(char *line) {
    char *word = strtok(line, " \n");
    if (word && !strcmp(word, "arm")) {
        skip = atol(strtok(0, " \n"));
        count = atol(strtok(0, " \n"));
        n_matched = n_failed = n_writes = n_patterns = 0;
        while ((word = strtok(0, " \n")) && n_patterns < MAX_PATTERNS) {
            size_t n = 0;
            unsigned byte;
            for (; n < MAX_PATTERN && sscanf(word + 2 * n, "%2x", &byte) == 1; n++) patterns[n_patterns][n] = byte;
            lengths[n_patterns++] = n;
        }
    } else {
        n_patterns = 0;
    }
    printf("%ld %ld %ld\n", n_matched, n_failed, n_writes);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    nbytes = strtoull(argv[2], 0, 10);
    disk = mmap(0, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    static char request[MAX_WRITE + 65536] __attribute__((aligned(8)));
    char options[128], line[4096];
    device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,max_read=%d", device, MAX_WRITE);
    if (disk == MAP_FAILED || device < 0 || mount("lossy_disk", argv[1], "fuse", MS_NOSUID | MS_NODEV, options)) {
        perror("cannot mount");
        return 1;
    }
    printf("ready\n");
    fflush(stdout);
    struct pollfd waited[] = {{.fd = device, .events = POLLIN}, {.fd = 0, .events = POLLIN}};
    while (poll(waited, 2, -1) > 0 || errno == EINTR) {
        if (waited[1].revents) {
            if (!fgets(line, sizeof line, stdin)) break;
            obey(line);
        }
        if (waited[0].revents) {
            ssize_t n = read(device, request, sizeof request);
            if (n < 0 && errno == ENODEV) return 0; /* unmounted */
            if (n > 0) answer(request);
        }
    }
    umount2(argv[1], MNT_DETACH);
    return 0;
}
