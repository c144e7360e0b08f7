/* Replays a corpus through a fuzz target without libFuzzer, in every ordinary test run:
 * each file that is given or is in a given folder, then the empty input. -n adds that
 * many inputs that are changed at random: bytes are flipped, overwritten, inserted or
 * taken out, or are pieces of other inputs. It fails if the process has held more than
 * PEAK_MAX_MIB: the reader must not allocate all that an input claims.
 *
 *   replay_NAME [-n INPUTS [-s SEED]] FOLDER ... */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUTS_MAX = 4096, GROWTH = 256, BYTES_MAX = 1 << 16, PEAK_MAX_MIB = 1024 };

typedef struct input {
    uint8_t *bytes;
    size_t n;
} input;

static input inputs[INPUTS_MAX];
static size_t n_inputs;
static uint64_t state = 1; // of draw

static int replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct stat st;
    if (!f || fstat(fileno(f), &st) != 0) {
        perror(path);
        if (f) fclose(f);
        return 1;
    }
    // Exactly as large as the input, so that ASan sees a read past its end.
    size_t size = (size_t)st.st_size;
    uint8_t *data = malloc(size ? size : 1);
    int failed = !data || fread(data, 1, size, f) != size;
    fclose(f);
    if (!failed)
        LLVMFuzzerTestOneInput(data, size);
    else
        fprintf(stderr, "%s: could not be read\n", path);
    if (!failed && n_inputs < INPUTS_MAX)
        inputs[n_inputs++] = (input){data, size};
    else
        free(data);
    return failed;
}

/* splitmix64, https://prng.di.unimi.it/splitmix64.c */
static size_t draw(size_t below)
{
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return below > 0 ? (size_t)((z ^ (z >> 31)) % below) : 0;
}

static size_t insert(uint8_t *to, size_t n, const uint8_t *from, size_t bytes)
{
    size_t at = draw(n + 1);
    if (at > n) return n; // this is never so, but the compiler cannot know it
    memmove(to + at + bytes, to + at, n - at);
    memcpy(to + at, from, bytes);
    return n + bytes;
}

/* buffer has room for GROWTH bytes more. Returns the new size. */
static size_t change(uint8_t *buffer, size_t n)
{
    static const uint8_t edges[] = {0, 1, 0x7f, 0x80, 0xc4, 0xcf, 0xdd, 0xff};
    const input *other = &inputs[draw(n_inputs)];
    size_t at = draw(n), bytes;
    switch (draw(6)) {
    case 0:
        if (n > 0) buffer[at] ^= (uint8_t)(1u << draw(8));
        return n;
    case 1:
        if (n > 0) buffer[at] = edges[draw(sizeof edges)];
        return n;
    case 2:
        return n > 0 ? at : n; // cut
    case 3:
        bytes = draw(n - at + 1);
        if (bytes > 16) bytes = 16;
        memmove(buffer + at, buffer + at + bytes, n - at - bytes);
        return n - bytes;
    case 4:
        return insert(buffer, n, &edges[draw(sizeof edges)], 1);
    default:
        bytes = draw(other->n < GROWTH / 8 ? other->n : GROWTH / 8);
        return insert(buffer, n, other->bytes + draw(other->n - bytes), bytes);
    }
}

static void run_changed(void)
{
    static uint8_t buffer[BYTES_MAX + GROWTH];
    const input *from = &inputs[draw(n_inputs)];
    size_t n = from->n < BYTES_MAX ? from->n : BYTES_MAX;
    memcpy(buffer, from->bytes, n);
    for (size_t k = 1 + draw(6); k > 0; k--)
        n = change(buffer, n);
    uint8_t *exact = malloc(n ? n : 1);
    if (!exact) abort();
    memcpy(exact, buffer, n);
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
}

static int replay(const char *path, int *n)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        perror(path);
        return 1;
    }
    if (S_ISREG(st.st_mode)) {
        ++*n;
        return replay_file(path);
    }
    DIR *dir = opendir(path);
    if (!dir) {
        perror(path);
        return 1;
    }
    int failed = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        char inner[4096];
        if (e->d_name[0] == '.') continue;
        int len = snprintf(inner, sizeof inner, "%s/%s", path, e->d_name);
        failed |= len >= (int)sizeof inner || replay(inner, n);
    }
    closedir(dir);
    return failed;
}

static int took_too_much(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0) return 1;
    printf("%ld MiB of memory at most\n", usage.ru_maxrss / 1024);
    return usage.ru_maxrss / 1024 > PEAK_MAX_MIB;
}

int main(int argc, char **argv)
{
    int failed = 0, n = 0;
    long n_changed = 0;
    for (int option; (option = getopt(argc, argv, "n:s:")) != -1;) {
        if (option == '?') return 2;
        if (option == 'n') n_changed = atol(optarg);
        if (option == 's') state = strtoull(optarg, NULL, 10);
    }
    for (int i = optind; i < argc; i++)
        failed |= replay(argv[i], &n);
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    for (long i = 0; i < n_changed && n_inputs > 0; i++)
        run_changed();
    for (size_t i = 0; i < n_inputs; i++)
        free(inputs[i].bytes);
    printf("%d inputs replayed, %ld changed ones\n", n, n_changed);
    return failed || n == 0 || took_too_much();
}
