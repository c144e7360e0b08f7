#include "thread.h"

#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 16 }; // of the kernel, with the end

ps_err ps_thread_start(pthread_t *thread, const char *name, void *(*main)(void *),
                       void *arg)
{
    int code = pthread_create(thread, NULL, main, arg);
    if (code != 0)
        return ps_err_set(PS_ERR_NOMEM, "no thread for %s: %s", name, strerror(code));
    char short_name[NAME_BYTES];
    snprintf(short_name, sizeof short_name, "%s", name);
    (void)pthread_setname_np(*thread, short_name); // a thread without works as well
    return PS_OK;
}
