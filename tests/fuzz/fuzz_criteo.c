/* The readers of Criteo's files: any bytes as a text in memory, as a file, and as the
 * same file by gzip; what begins as gzip does is a file alone. All take the same bytes
 * for the same samples, also those that stay in a file (data.stream). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "criteo.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

enum {
    VALUES_BYTES = PS_CRITEO_COUNTS * sizeof(float),
    IDS_BYTES = PS_CRITEO_IDS * sizeof(int64_t)
};

static char path[128];

static void fuzz_remove(void)
{
    unlink(path);
    *strrchr(path, '/') = '\0';
    rmdir(path);
}

static void fuzz_begin(void)
{
    const char *folder = getenv("TMPDIR");
    if (path[0]) return;
    snprintf(path, sizeof path, "%s/fuzz-criteo-XXXXXX", folder ? folder : "/tmp");
    if (!mkdtemp(path)) abort();
    strcat(path, "/clicks");
    atexit(fuzz_remove);
}

static void fuzz_write(const uint8_t *bytes, size_t n, bool compressed)
{
    unlink(path); // ext4 writes what replaces a file's bytes to the disk at once
    gzFile file = gzopen(path, compressed ? "wb1" : "wbT");
    if (!file || gzwrite(file, bytes, (unsigned)n) != (int)n || gzclose(file) != Z_OK)
        abort();
}

static void fuzz_check_error(ps_err err)
{
    if (err != PS_OK && err != PS_ERR_FORMAT) abort();
    if (err != PS_OK && strncmp(ps_err_message(), path, strlen(path)) != 0) abort();
}

static ps_err fuzz_read_text(const uint8_t *bytes, size_t n, ps_dataset *out)
{
    char *text = malloc(n + 1);
    if (!text) abort();
    if (n > 0) memcpy(text, bytes, n);
    const ps_err err = ps_criteo_parse_new(path, text, n, out);
    free(text);
    fuzz_check_error(err);
    return err;
}

static void fuzz_must_be_equal(const void *a, const void *b, size_t bytes)
{
    if (memcmp(a, b, bytes) != 0) abort();
}

static void fuzz_check_stored(const ps_dataset *set, const ps_dataset *wanted)
{
    char room[VALUES_BYTES + IDS_BYTES];
    if (set->n != wanted->n || set->answered != wanted->answered ||
        ps_sample_file_room(set->stream) != sizeof room)
        abort();
    for (int64_t i = 0; i < set->n; i++) {
        if (ps_sample_file_read(set->stream, i, room) != PS_OK) abort();
        fuzz_must_be_equal(room, (const char *)wanted->values + i * VALUES_BYTES,
                           VALUES_BYTES);
        fuzz_must_be_equal(ps_sample_file_more(set->stream, room),
                           wanted->ids + i * PS_CRITEO_IDS, IDS_BYTES);
    }
    fuzz_must_be_equal(set->labels, wanted->labels, (size_t)set->n * sizeof *set->labels);
}

static void fuzz_check_same(const ps_dataset *set, const ps_dataset *wanted)
{
    const size_t n = (size_t)set->n;
    if (set->n != wanted->n || set->answered != wanted->answered) abort();
    fuzz_must_be_equal(set->values, wanted->values, n * VALUES_BYTES);
    fuzz_must_be_equal(set->ids, wanted->ids, n * IDS_BYTES);
    fuzz_must_be_equal(set->labels, wanted->labels, n * sizeof *set->labels);
}

/* What a turn looks at beside the text: all, for an input alone; else one thing or none,
 * since each reader takes some MiB for a file. */
enum { NEW = 1, COMPRESSED = 2, LABELLED = 4, STORED = 8, ALL = 15, TURNS_OF_ALL = 64 };

static int fuzz_turn(void)
{
    static uint64_t turns;
    const uint64_t turn = turns++;
    return turn < TURNS_OF_ALL ? ALL : turn % 8 < 4 ? 1 << turn % 8 : 0;
}

/* The file as one to train on, which has a label in each line. */
static void fuzz_read_labelled(ps_err wanted_err, const ps_dataset *wanted, bool stored)
{
    char *const paths[] = {path};
    ps_dataset set;
    const ps_err err =
        stored ? ps_criteo_open(paths, 1, NULL, &set) : ps_criteo_read(paths, 1, &set);
    fuzz_check_error(err);
    const bool labelled = wanted && wanted_err == PS_OK && wanted->answered;
    if (wanted && (err == PS_OK) != labelled) abort();
    if (wanted && err == PS_OK && stored) fuzz_check_stored(&set, wanted);
    if (wanted && err == PS_OK && !stored) fuzz_check_same(&set, wanted);
    ps_dataset_fini(&set);
}

/* wanted NULL: nothing is known of what is in the file. */
static void fuzz_read_file(int turn, ps_err wanted_err, const ps_dataset *wanted)
{
    ps_dataset set;
    if (turn & LABELLED) fuzz_read_labelled(wanted_err, wanted, false);
    if (turn & STORED) fuzz_read_labelled(wanted_err, wanted, true);
    if (!(turn & (NEW | COMPRESSED))) return;
    const ps_err err = ps_criteo_open_new(path, &set);
    fuzz_check_error(err);
    if (wanted && err != wanted_err) abort();
    if (wanted && err == PS_OK) fuzz_check_stored(&set, wanted);
    ps_dataset_fini(&set);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    ps_dataset text;
    const int turn = fuzz_turn();
    fuzz_begin();
    if (n >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b) {
        fuzz_write(bytes, n, false);
        fuzz_read_file(turn ? turn : NEW, PS_OK, NULL);
        return 0;
    }
    const ps_err err = fuzz_read_text(bytes, n, &text);
    if (turn & ~COMPRESSED) {
        fuzz_write(bytes, n, false);
        fuzz_read_file(turn & ~COMPRESSED, err, &text);
    }
    if (turn & COMPRESSED) {
        fuzz_write(bytes, n, true);
        fuzz_read_file(turn, err, &text);
    }
    ps_dataset_fini(&text);
    return 0;
}
