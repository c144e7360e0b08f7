/* For tests that compare with PyTorch. They run a script of tests/vectors, which exits
 * with 77 when a Python module that it needs is missing. */
#ifndef TEST_PYTHON_H
#define TEST_PYTHON_H

#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* Runs a script of tests/vectors with the interpreter that PS_TORCH_PYTHON names, else
 * /usr/bin/python3 (for Debian's python3-torch), else the first python3 on PATH. Returns
 * the exit status; 0: success. */
static inline int python_run(const char *script, const char *arguments)
{
    char command[1024];
    const char *python = getenv("PS_TORCH_PYTHON");
    if (!python) {
        FILE *debian = fopen("/usr/bin/python3", "rb");
        if (debian) fclose(debian);
        python = debian ? "/usr/bin/python3" : "python3";
    }
    // Don't preload this process's sanitizers into the interpreter.
    snprintf(command, sizeof command, "env -u LD_PRELOAD %s tests/vectors/%s %s", python,
             script, arguments);
    int status = system(command);
    return status != -1 && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

enum { PYTHON_SKIP = 77, PYTHON_MISSING = 127 };

/* What a script (with arguments before it) writes into the file that it is given, to be
 * read and closed by the caller; NULL: Python or a module is missing. */
static inline FILE *python_output(const char *script)
{
    char path[] = "/tmp/pstrain-python-XXXXXX";
    const int fd = mkstemp(path);
    if (fd < 0) fail_msg("no file %s", path);
    close(fd);
    const int status = python_run(script, path);
    FILE *in = fopen(path, "rb");
    unlink(path);
    if (!in) fail_msg("no file %s", path);
    if (status == 0) return in;
    fclose(in);
    if (status != PYTHON_SKIP && status != PYTHON_MISSING)
        fail_msg("%s failed: %d", script, status);
    return NULL;
}

#endif
