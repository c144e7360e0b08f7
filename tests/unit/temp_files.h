/* Files that a test writes into its own temporary folder. */
#ifndef PS_TEST_TEMP_FILES_H
#define PS_TEST_TEMP_FILES_H

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

typedef struct temp_folder {
    char path[64];
    char name[384]; // of the file that temp_path named last
} temp_folder;

static inline int temp_folder_init(temp_folder *folder)
{
    snprintf(folder->path, sizeof folder->path, "/tmp/pstrain-test-XXXXXX");
    return mkdtemp(folder->path) != NULL ? 0 : -1;
}

static inline char *temp_path(temp_folder *folder, const char *name)
{
    snprintf(folder->name, sizeof folder->name, "%s/%s", folder->path, name);
    return folder->name;
}

static inline int temp_write(temp_folder *folder, const char *name, const void *bytes,
                             size_t n)
{
    FILE *f = fopen(temp_path(folder, name), "wb");
    if (f == NULL) return -1;
    size_t written = n > 0 ? fwrite(bytes, 1, n, f) : 0;
    return fclose(f) == 0 && written == n ? 0 : -1;
}

static inline int temp_write_gz(temp_folder *folder, const char *name, const void *bytes,
                                unsigned n)
{
    gzFile f = gzopen(temp_path(folder, name), "wb9");
    if (f == NULL) return -1;
    int written = n > 0 ? gzwrite(f, bytes, n) : 0;
    return gzclose(f) == Z_OK && written == (int)n ? 0 : -1;
}

static inline void temp_folder_fini(temp_folder *folder)
{
    DIR *dir = opendir(folder->path);
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;)
        if (e->d_name[0] != '.') unlink(temp_path(folder, e->d_name));
    if (dir != NULL) closedir(dir);
    rmdir(folder->path);
}

#endif
