/* Tests that compare with PyTorch run one of the scripts of tests/vectors, which exits
 * with 77 when a module that it needs is not there. */
#ifndef TEST_PYTHON_H
#define TEST_PYTHON_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

/* Runs a script of this project with the interpreter of PS_TEST_PYTHON, else python3 of
 * /usr/bin (Debian's python3-torch), else the first of the path. 0: it succeeded. */
static inline int python_run(const char *script, const char *arguments)
{
    char command[1024];
    const char *python = getenv("PS_TEST_PYTHON");
    if (!python) {
        FILE *debian = fopen("/usr/bin/python3", "rb");
        if (debian) fclose(debian);
        python = debian ? "/usr/bin/python3" : "python3";
    }
    // Sanitizers of this process are none of the interpreter's business.
    snprintf(command, sizeof command, "env -u LD_PRELOAD %s tests/vectors/%s %s", python,
             script, arguments);
    int status = system(command);
    return status != -1 && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

enum { PYTHON_SKIP = 77, PYTHON_MISSING = 127 };

/* Skips the running test, saying so, where there is no Python or module. */
#define PYTHON_OR_SKIP(script, arguments)                                                \
    do {                                                                                 \
        int python_status_ = python_run(script, arguments);                              \
        if (python_status_ == PYTHON_SKIP || python_status_ == PYTHON_MISSING) skip();   \
        if (python_status_ != 0) fail_msg("%s failed: %d", script, python_status_);      \
    } while (0)

#endif
