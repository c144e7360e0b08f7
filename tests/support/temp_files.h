/* Files that a test writes into its own temporary folder: IN_FOLDER(name) { … } is a test
 * that has one, `folder`. */
#ifndef PS_TEST_TEMP_FILES_H
#define PS_TEST_TEMP_FILES_H

#include <dirent.h>
#include <unistd.h>
#include <zlib.h>

#include "check.h"

typedef struct temp_folder {
    char path[64];
    char name[384]; // of the file that temp_path named last
} temp_folder;

static temp_folder folder;

static inline int temp_folder_make(void **state)
{
    snprintf(folder.path, sizeof folder.path, "/tmp/pstrain-test-XXXXXX");
    return mkdtemp(folder.path) != NULL ? 0 : -1;
}

static inline char *temp_path(const char *name)
{
    snprintf(folder.name, sizeof folder.name, "%s/%s", folder.path, name);
    return folder.name;
}

static inline int temp_write(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(temp_path(name), "wb");
    if (f == NULL) return -1;
    size_t written = n > 0 ? fwrite(bytes, 1, n, f) : 0;
    return fclose(f) == 0 && written == n ? 0 : -1;
}

static inline int temp_write_gz(const char *name, const void *bytes, unsigned n)
{
    gzFile f = gzopen(temp_path(name), "wb9");
    if (f == NULL) return -1;
    int written = n > 0 ? gzwrite(f, bytes, n) : 0;
    return gzclose(f) == Z_OK && written == (int)n ? 0 : -1;
}

static inline int temp_folder_remove(void **state)
{
    DIR *dir = opendir(folder.path);
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;)
        if (e->d_name[0] != '.') unlink(temp_path(e->d_name));
    if (dir != NULL) closedir(dir);
    return rmdir(folder.path);
}

#define IN_FOLDER(name) TEST_WITH(name, temp_folder_make, temp_folder_remove)

#endif
