/* The disk of a host that loses power: what a process has not asked to be kept (fsync)
 * may be gone. A file without it is cut short; a name that a file got since its folder
 * was kept may be its old one again. Or the disk is full for a while. */
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "world.h"

enum { FILES = 4096, NAMES = 256, PATH_BYTES = 400 };

static struct {
    ino_t changed[FILES]; // files that were written since the last fsync
    int n_changed;
    struct {
        char from[PATH_BYTES], to[PATH_BYTES];
    } names[NAMES]; // that were given since
    int n_names;
    uint64_t full_until_ns;
} disk;

static int find_changed(ino_t file)
{
    for (int i = 0; i < disk.n_changed; i++)
        if (disk.changed[i] == file) return i;
    return -1;
}

void world_disk_fills(uint64_t until_ns)
{
    world_say("no room on any disk until %.3f s", (double)until_ns * 1e-9);
    disk.full_until_ns = until_ns;
}

bool world_disk_takes(int fd)
{
    struct stat s;
    if (fstat(fd, &s) != 0 || !S_ISREG(s.st_mode)) return true;
    if (world_time() < disk.full_until_ns) {
        world_say("no room for what is written");
        return false;
    }
    if (find_changed(s.st_ino) < 0 && disk.n_changed < FILES)
        disk.changed[disk.n_changed++] = s.st_ino;
    return true;
}

int __real_fsync(int fd);
int __real_rename(const char *from, const char *to);

void (*world_disk_moment)(void);

static void moment(void)
{
    if (world_disk_moment) world_disk_moment();
    world_yield();
}

int __wrap_fsync(int fd)
{
    struct stat s;
    moment();
    if (fstat(fd, &s) == 0 && S_ISDIR(s.st_mode)) disk.n_names = 0;
    const int i = fstat(fd, &s) == 0 ? find_changed(s.st_ino) : -1;
    if (i >= 0) disk.changed[i] = disk.changed[--disk.n_changed];
    moment();
    return 0;
}

int __wrap_rename(const char *from, const char *to)
{
    const bool is_new = access(to, F_OK) != 0;
    moment();
    const int code = __real_rename(from, to);
    if (code == 0 && is_new && disk.n_names < NAMES) {
        snprintf(disk.names[disk.n_names].from, PATH_BYTES, "%s", from);
        snprintf(disk.names[disk.n_names++].to, PATH_BYTES, "%s", to);
    }
    moment();
    return code;
}

static int cut_short(const char *path, const struct stat *s, int kind, struct FTW *at)
{
    (void)at;
    if (kind != FTW_F || find_changed(s->st_ino) < 0) return 0;
    const off_t kept = (off_t)world_draw((uint64_t)s->st_size + 1);
    world_say("lost: %s from byte %lld on", path, (long long)kept);
    return truncate(path, kept);
}

void world_disk_loses_power(const char *folder)
{
    world_say("no power for %s", folder);
    nftw(folder, cut_short, 16, FTW_PHYS);
    while (disk.n_names > 0) {
        disk.n_names--;
        const char *from = disk.names[disk.n_names].from,
                   *to = disk.names[disk.n_names].to;
        if (world_draw(2) == 0 || __real_rename(to, from) != 0) continue;
        world_say("lost: the name %s", to);
    }
}
