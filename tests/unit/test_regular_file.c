/* What may stand where a file is expected: nothing waits for it, or changes it. */
#include "regular_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "check.h"
#include "temp_files.h"

static void refused(const char *path, int flags, const char *why)
{
    int fd;
    assert_int_equal(ps_regular_file_open(path, flags, &fd), PS_ERR_IO);
    assert_int_equal(fd, -1);
    assert_non_null(strstr(ps_err_message(), path));
    assert_non_null(strstr(ps_err_message(), why));
}

IN_FOLDER(a_file_is_opened)
{
    FILE *f;
    char text[8] = "";
    const char *path = temp_path("file");
    refused(path, O_RDONLY, "No such file");
    assert_int_equal(errno, ENOENT);
    for (int i = 0; i < 3; i++) { // "w" begins anew
        assert_ok(ps_regular_file_stream(path, i < 2 ? "w" : "a", &f));
        assert_true(fputs("abc", f) >= 0 && fclose(f) == 0);
    }
    assert_ok(ps_regular_file_stream(path, "r", &f));
    assert_string_equal(fgets(text, sizeof text, f), "abcabc");
    fclose(f);
    refused(path, O_WRONLY | O_CREAT | O_EXCL, "exists");
    assert_int_equal(errno, EEXIST);
}

IN_FOLDER(what_is_no_file)
{
    assert_int_equal(mkfifo(temp_path("fifo"), 0600), 0);
    refused(folder.name, O_RDONLY, "is not a regular file");
    refused(folder.name, O_WRONLY | O_CREAT | O_TRUNC, "is not a regular file");
    refused("/dev/zero", O_RDONLY, "is not a regular file");
    refused("/dev/null", O_WRONLY | O_APPEND, "is not a regular file");
    refused(folder.path, O_RDONLY, "is not a regular file");
}

/* It is followed where it is read alone. */
IN_FOLDER(a_link)
{
    struct stat st;
    int fd;
    char link[sizeof folder.name];
    snprintf(link, sizeof link, "%s", temp_path("link"));
    assert_int_equal(temp_write("target", "abc", 3), 0);
    assert_int_equal(symlink(folder.name, link), 0);
    refused(link, O_WRONLY | O_CREAT | O_TRUNC, "remove the link");
    assert_true(stat(link, &st) == 0 && st.st_size == 3);
    assert_ok(ps_regular_file_open(link, O_RDONLY, &fd));
    close(fd);
}
