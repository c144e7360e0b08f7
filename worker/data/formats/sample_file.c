#include "sample_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mem.h"

static ps_err sample_file_check_file(const ps_sample_file *f, uint64_t bytes)
{
    struct stat st;
    if (fstat(f->fd, &st) != 0) return ps_err_errno(PS_ERR_IO, "%s", f->path);
    if (!S_ISREG(st.st_mode))
        return ps_err_set(PS_ERR_IO, "%s: is not a regular file", f->path);
    if ((uint64_t)st.st_size == bytes) return PS_OK;
    return ps_err_set(PS_ERR_FORMAT,
                      "%s: has %lld bytes, and its header says %" PRIu64
                      "; save or copy it again",
                      f->path, (long long)st.st_size, bytes);
}

static ps_err sample_file_bytes_of(const ps_sample_file *f, int64_t n, uint64_t *out)
{
    uint64_t sample = (uint64_t)f->item_bytes;
    if (__builtin_mul_overflow(sample, (uint64_t)f->count, &sample) ||
        __builtin_mul_overflow(sample, (uint64_t)n, out) ||
        __builtin_add_overflow(*out, f->offset, out) || *out > INT64_MAX)
        return ps_err_set(PS_ERR_FORMAT, "%s: is too large", f->path);
    return PS_OK;
}

ps_err ps_sample_file_open(const char *path, uint64_t from, int64_t n, int64_t count,
                           int item_bytes, ps_sample_file **out)
{
    ps_sample_file *f;
    uint64_t bytes = 0;
    ps_err err = PS_OK;
    *out = NULL;
    PS_TRY(PS_NEW(&f, 1, path));
    *f = (ps_sample_file){.offset = from, .count = count, .item_bytes = item_bytes};
    // O_NONBLOCK: a FIFO of that name must not hang us; regular files don't mind.
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0) PS_TRY_GOTO(ps_err_errno(PS_ERR_IO, "%s", path), err, fail);
    PS_TRY_GOTO(ps_mem_strdup(&f->path, path), err, fail);
    PS_TRY_GOTO(sample_file_bytes_of(f, n, &bytes), err, fail);
    PS_TRY_GOTO(sample_file_check_file(f, bytes), err, fail);
    *out = f;
    return PS_OK;
fail:
    ps_sample_file_close(&f);
    return err;
}

ps_err ps_sample_file_of(int fd, const char *name, int64_t count, size_t more,
                         ps_sample_file **out)
{
    ps_err err = PS_NEW(out, 1, name);
    if (err != PS_OK) {
        close(fd);
        return err;
    }
    **out = (ps_sample_file){
        .fd = fd, .count = count, .item_bytes = sizeof(float), .more = more};
    err = ps_mem_strdup(&(*out)->path, name);
    if (err != PS_OK) ps_sample_file_close(out);
    return err;
}

void ps_sample_file_close(ps_sample_file **file)
{
    ps_sample_file *f = *file;
    if (f == NULL) return;
    *file = NULL;
    if (f->fd >= 0) close(f->fd);
    free(f->path);
    free(f->kept);
    free(f);
}

size_t ps_sample_file_room(const ps_sample_file *f)
{
    return (size_t)f->count * (size_t)f->item_bytes + f->more;
}

ps_err ps_sample_file_keep(ps_sample_file *f, const int64_t *rows, int64_t n)
{
    PS_TRY(PS_NEW(&f->kept, (size_t)n, f->path));
    memcpy(f->kept, rows, (size_t)n * sizeof *rows);
    return PS_OK;
}

static int64_t sample_file_row(const ps_sample_file *f, int64_t index)
{
    return f->kept ? f->kept[index] : index;
}

static off_t sample_file_place_of(const ps_sample_file *f, int64_t index)
{
    index = sample_file_row(f, index);
    return (off_t)(f->offset + (uint64_t)index * ps_sample_file_room(f));
}

void ps_sample_file_skip(ps_sample_file *f, int64_t samples)
{
    f->offset += (uint64_t)samples * ps_sample_file_room(f);
    f->first += samples;
}

void ps_sample_file_expect(const ps_sample_file *f, const int64_t *indices, int64_t n)
{
    const off_t bytes = (off_t)ps_sample_file_room(f);
    for (int64_t i = 0, end = 0; i < n; i = end) {
        for (end = i + 1; end < n && sample_file_row(f, indices[end]) ==
                                         sample_file_row(f, indices[end - 1]) + 1;)
            end++;
        // Advice alone: whether it helps, or is refused, changes no result.
        (void)posix_fadvise(f->fd, sample_file_place_of(f, indices[i]), (end - i) * bytes,
                            POSIX_FADV_WILLNEED);
    }
}

static ps_err read_bytes(const ps_sample_file *f, int64_t index, char *out)
{
    const size_t bytes = ps_sample_file_room(f);
    const off_t from = sample_file_place_of(f, index);
    const int64_t sample = f->first + sample_file_row(f, index);
    for (size_t have = 0; have < bytes;) {
        const ssize_t got = pread(f->fd, out + have, bytes - have, from + (off_t)have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return ps_err_errno(PS_ERR_IO, "%s: sample %" PRId64, f->path, sample);
        if (got == 0)
            return ps_err_set(PS_ERR_FORMAT,
                              "%s: has become shorter: sample %" PRId64
                              " is no longer there; leave the file as it is while "
                              "data.stream reads it",
                              f->path, sample);
        have += (size_t)got;
    }
    return PS_OK;
}

static ps_err sample_file_check_finite(const ps_sample_file *f, int64_t index,
                                       const float *values)
{
    for (int64_t i = 0; i < f->count; i++)
        if (!isfinite(values[i]))
            return ps_err_set(PS_ERR_NUMERIC,
                              "%s: sample %" PRId64 ": value %" PRId64
                              " is not a finite number",
                              f->path, f->first + sample_file_row(f, index), i);
    return PS_OK;
}

ps_err ps_sample_file_read(const ps_sample_file *f, int64_t index, void *room)
{
    PS_TRY(read_bytes(f, index, room));
    if (f->item_bytes == 1) return PS_OK;
    if (f->item_bytes == (int)sizeof(double))
        for (int64_t i = 0; i < f->count; i++) {
            double v;
            memcpy(&v, (char *)room + i * (int64_t)sizeof v, sizeof v);
            const float single = (float)v;
            memcpy((char *)room + i * (int64_t)sizeof single, &single, sizeof single);
        }
    return sample_file_check_finite(f, index, room);
}

const void *ps_sample_file_more(const ps_sample_file *f, const void *room)
{
    return (const char *)room + f->count * (int64_t)sizeof(float);
}
