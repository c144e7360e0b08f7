/* Replays a corpus through a fuzz target without libFuzzer, so that every ordinary test
 * run does: each file of the folders (or file) given, then the empty input. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
    free(data);
    return failed;
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

int main(int argc, char **argv)
{
    int failed = 0, n = 0;
    for (int i = 1; i < argc; i++)
        failed |= replay(argv[i], &n);
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    printf("%d inputs replayed\n", n);
    return failed || n == 0;
}
