#include "data_files.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mem.h"

enum {
    DEFLATE_MAX_RATIO = 1032, // 258 bytes from 2 bits
    BLOCK = 1 << 20,          // the most bytes that one call of zlib reads
    GROWTH_START = 1 << 20    // bytes of a compressed file's first buffer
};

/* Parses "12-34"; false: not a range. */
static bool parse_range(const char *text, int64_t *first, int64_t *last)
{
    const char *digits = "0123456789";
    size_t a = strspn(text, digits);
    if (a == 0 || a > 18 || text[a] != '-') return false;
    size_t b = strspn(text + a + 1, digits);
    if (b == 0 || b > 18 || text[a + 1 + b] != '\0') return false;
    *first = strtoll(text, NULL, 10);
    *last = strtoll(text + a + 1, NULL, 10);
    return true;
}

static ps_err parse_files(ps_data_spec *spec, const char *key, const char *text, size_t n)
{
    const char *end = text + n;
    while (text <= end) {
        const char *comma = memchr(text, ',', (size_t)(end - text));
        const char *stop = comma != NULL ? comma : end;
        while (text < stop && *text == ' ')
            text++;
        while (stop > text && stop[-1] == ' ')
            stop--;
        if (stop == text)
            return ps_err_set(PS_ERR_CONFIG, "%s: a file name is empty", key);
        if (spec->n_files == PS_DATA_MAX_FILES)
            return ps_err_set(PS_ERR_CONFIG, "%s: more than %d files", key,
                              PS_DATA_MAX_FILES);
        char *name = strndup(text, (size_t)(stop - text));
        if (name == NULL) return ps_err_set(PS_ERR_NOMEM, "%s: no memory", key);
        spec->files[spec->n_files++] = name;
        if (comma == NULL) break;
        text = comma + 1;
    }
    return PS_OK;
}

ps_err ps_data_spec_init(ps_data_spec *spec, const char *key, const char *text)
{
    memset(spec, 0, sizeof *spec);
    const char *at = strrchr(text, '@');
    if (at != NULL && strchr(at, '/') != NULL) at = NULL; // of a folder's name
    spec->has_range = parse_range(at != NULL ? at + 1 : text, &spec->first, &spec->last);
    if (at != NULL && !spec->has_range)
        return ps_err_set(PS_ERR_CONFIG, "%s: \"%s\" is not a range such as 0-7999", key,
                          at + 1);
    if (spec->has_range && spec->last < spec->first)
        return ps_err_set(PS_ERR_CONFIG,
                          "%s: the range %" PRId64 "-%" PRId64 " ends before it starts",
                          key, spec->first, spec->last);
    size_t n = at != NULL ? (size_t)(at - text) : spec->has_range ? 0 : strlen(text);
    return n > 0 ? parse_files(spec, key, text, n) : PS_OK;
}

void ps_data_spec_fini(ps_data_spec *spec)
{
    for (int i = 0; i < spec->n_files; i++)
        free(spec->files[i]);
    memset(spec, 0, sizeof *spec);
}

bool ps_data_is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

ps_err ps_data_folder(const char *path, const char *config_file, char **out)
{
    *out = NULL;
    if (path[0] == '\0') path = ".";
    const char *slash = config_file ? strrchr(config_file, '/') : NULL;
    char *beside = NULL;
    if (path[0] != '/' && slash != NULL &&
        asprintf(&beside, "%.*s/%s", (int)(slash - config_file), config_file, path) < 0)
        return ps_err_set(PS_ERR_NOMEM, "data.path: no memory");
    if (beside != NULL && ps_data_is_folder(beside)) {
        *out = beside;
        return PS_OK;
    }
    ps_err err = ps_data_is_folder(path) ? ps_mem_strdup(out, path)
                 : beside != NULL
                     ? ps_err_set(PS_ERR_IO, "data.path: there is no folder %s, nor %s",
                                  beside, path)
                     : ps_err_set(PS_ERR_IO, "data.path: there is no folder %s", path);
    free(beside);
    return err;
}

ps_err ps_data_path(const char *folder, const char *name, char **out)
{
    if (name[0] == '/') return ps_mem_strdup(out, name);
    if (strcmp(name, ".") == 0) return ps_mem_strdup(out, folder);
    if (asprintf(out, "%s/%s", folder, name) >= 0) return PS_OK;
    *out = NULL;
    return ps_err_set(PS_ERR_NOMEM, "%s: no memory", name);
}

ps_err ps_data_temporary(const char *folder, int *fd)
{
    const char *const folders[] = {folder, "/var/tmp", "/tmp"};
    *fd = -1;
    for (size_t i = 0; i < sizeof folders / sizeof *folders && *fd < 0; i++)
        *fd = open(folders[i], O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (*fd >= 0) return PS_OK;
    return ps_err_errno(PS_ERR_IO, "no temporary file for samples in %s, nor in /var/tmp",
                        folder);
}

ps_err ps_source_init(ps_source *source, const char *path)
{
    memset(source, 0, sizeof *source);
    // O_NONBLOCK: a FIFO of that name must not hang us; regular files don't mind.
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return ps_err_errno(PS_ERR_IO, "%s", path);
    return ps_source_init_fd(source, fd, path);
}

ps_err ps_source_init_fd(ps_source *source, int fd, const char *path)
{
    memset(source, 0, sizeof *source);
    ps_err err = PS_OK;
    struct stat st;
    if (fstat(fd, &st) != 0) PS_TRY_GOTO(ps_err_errno(PS_ERR_IO, "%s", path), err, fail);
    if (!S_ISREG(st.st_mode))
        PS_TRY_GOTO(ps_err_set(PS_ERR_IO, "%s: is not a regular file", path), err, fail);
    source->bytes = (uint64_t)st.st_size;
    PS_TRY_GOTO(ps_mem_strdup(&source->path, path), err, fail);
    source->file = gzdopen(fd, "rb");
    if (source->file == NULL)
        PS_TRY_GOTO(ps_err_set(PS_ERR_NOMEM, "%s: no memory for zlib", path), err, fail);
    gzbuffer(source->file, 1 << 17);
    return PS_OK;
fail:
    close(fd);
    ps_source_fini(source);
    return err;
}

void ps_source_fini(ps_source *source)
{
    if (source->file != NULL) gzclose(source->file);
    free(source->path);
    memset(source, 0, sizeof *source);
}

/* zlib's message begins with a made-up file name, "<fd:4>: "; skip it. */
static ps_err gzip_error(const ps_source *source, int code, const char *text)
{
    const char *what = strstr(text, ": ");
    if (code == Z_BUF_ERROR)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: the gzip file is truncated; download it again",
                          source->path);
    return ps_err_set(PS_ERR_FORMAT,
                      "%s: the gzip file is damaged (%s); download it "
                      "again",
                      source->path, what ? what + 2 : text);
}

/* A damaged or cut-off gzip file is an error here: zlib reports it, although it hands out
 * what it could decode. */
ps_err ps_source_read_some(ps_source *source, void *out, uint64_t n, uint64_t *got)
{
    *got = 0;
    while (*got < n) {
        unsigned want = n - *got < BLOCK ? (unsigned)(n - *got) : BLOCK;
        int r = gzread(source->file, (char *)out + *got, want);
        int code = Z_OK;
        const char *text = gzerror(source->file, &code);
        if (code == Z_ERRNO) return ps_err_errno(PS_ERR_IO, "%s", source->path);
        if (r < 0 || (code != Z_OK && code != Z_STREAM_END))
            return gzip_error(source, code, text);
        if (r == 0) break;
        *got += (unsigned)r;
        source->taken += (unsigned)r;
    }
    return PS_OK;
}

static ps_err too_short(const ps_source *source, uint64_t n, uint64_t got,
                        const char *what)
{
    return ps_err_set(PS_ERR_FORMAT,
                      "%s: truncated: %s should be %" PRIu64 " bytes, but only %" PRIu64
                      " are there",
                      source->path, what, n, got);
}

ps_err ps_source_read(ps_source *source, void *out, uint64_t n, const char *what)
{
    uint64_t got = 0;
    PS_TRY(ps_source_read_some(source, out, n, &got));
    return got == n ? PS_OK : too_short(source, n, got, what);
}

/* An upper bound of the bytes that are still to be read. */
static uint64_t bytes_left_at_most(ps_source *source)
{
    uint64_t total = source->bytes;
    if (!gzdirect(source->file) &&
        __builtin_mul_overflow(total, (uint64_t)DEFLATE_MAX_RATIO, &total))
        return UINT64_MAX;
    return total > source->taken ? total - source->taken : 0;
}

/* Reads until the end or until limit; the buffer doubles as bytes arrive. */
static ps_err read_growing(ps_source *source, uint64_t limit, const char *what,
                           char **out, uint64_t *n)
{
    uint64_t room = gzdirect(source->file) ? limit : GROWTH_START, have = 0;
    char *buffer = NULL;
    ps_err err = PS_OK;
    *n = 0;
    for (;;) {
        if (room > limit) room = limit;
        char *larger = room <= SIZE_MAX ? realloc(buffer, room > 0 ? room : 1) : NULL;
        if (larger == NULL)
            PS_TRY_GOTO(ps_err_set(PS_ERR_NOMEM,
                                   "%s: no memory for %s (%" PRIu64 " bytes)",
                                   source->path, what, room),
                        err, fail);
        buffer = larger;
        uint64_t got = 0;
        PS_TRY_GOTO(ps_source_read_some(source, buffer + have, room - have, &got), err,
                    fail);
        have += got;
        if (have < room || room == limit) break;
        room = room > limit / 2 ? limit : room * 2;
    }
    *out = buffer;
    *n = have;
    return PS_OK;
fail:
    free(buffer);
    return err;
}

ps_err ps_source_read_alloc(ps_source *source, uint64_t n, const char *what, void **out)
{
    *out = NULL;
    uint64_t most = bytes_left_at_most(source), got = 0;
    if (n > most)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: the header claims %" PRIu64
                          " bytes of %s, the file of %" PRIu64
                          " bytes holds at most %" PRIu64,
                          source->path, n, what, source->bytes, most);
    char *buffer = NULL;
    PS_TRY(read_growing(source, n, what, &buffer, &got));
    if (got != n) {
        free(buffer);
        return too_short(source, n, got, what);
    }
    *out = buffer;
    return PS_OK;
}

ps_err ps_source_end(ps_source *source)
{
    char byte;
    uint64_t got = 0;
    PS_TRY(ps_source_read_some(source, &byte, 1, &got));
    if (got == 0) return PS_OK;
    return ps_err_set(PS_ERR_FORMAT, "%s: more bytes than the %" PRIu64 " expected",
                      source->path, source->taken - 1);
}

ps_err ps_source_read_file(const char *path, uint64_t limit, void **out, uint64_t *n)
{
    ps_source source;
    char *buffer = NULL;
    *out = NULL;
    ps_err err = PS_OK;
    PS_TRY_GOTO(ps_source_init(&source, path), err, done);
    const uint64_t most = bytes_left_at_most(&source);
    PS_TRY_GOTO(
        read_growing(&source, most < limit ? most : limit, "its content", &buffer, n),
        err, done);
    PS_TRY_GOTO(ps_source_end(&source), err, done);
    *out = buffer;
    buffer = NULL;
done:
    free(buffer);
    ps_source_fini(&source);
    return err;
}
