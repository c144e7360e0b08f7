#include "err.h"

#include <errno.h>
#include <string.h>

static _Thread_local char message[PS_ERR_MESSAGE_BYTES];

ps_err ps_err_set(ps_err code, const char *fmt, ...)
{
    // Formatted into a buffer first: an argument may be the present message itself.
    char next[PS_ERR_MESSAGE_BYTES];
    PS_PRINT(next, fmt);
    memcpy(message, next, sizeof message);
    return code;
}

/* message = "<formatted>: <tail>", cut where it is too long. */
static void set_with_tail(const char *tail, const char *fmt, va_list args)
{
    char next[PS_ERR_MESSAGE_BYTES];
    vsnprintf(next, sizeof next, fmt, args);
    size_t used = strlen(next);
    size_t room = sizeof next - 1 - used;
    size_t colon = room < 2 ? room : 2, rest = strlen(tail);
    memcpy(next + used, ": ", colon);
    if (rest > room - colon) rest = room - colon;
    memcpy(next + used + colon, tail, rest);
    next[used + colon + rest] = '\0';
    memcpy(message, next, sizeof message);
}

ps_err ps_err_prefix(ps_err code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    set_with_tail(message, fmt, args);
    va_end(args);
    return code;
}

ps_err ps_err_errno(ps_err code, const char *fmt, ...)
{
    int saved = errno;
    va_list args;
    va_start(args, fmt);
    const char *tail = saved == EFBIG
                           ? "File too large (ulimit -f or the file system limits it)"
                           : strerror(saved);
    set_with_tail(tail, fmt, args);
    va_end(args);
    return code;
}

const char *ps_err_message(void)
{
    return message;
}

bool ps_err_is_passing(ps_err code)
{
    return code == PS_ERR_PEER || code == PS_ERR_NET || code == PS_ERR_TIMEOUT ||
           code == PS_ERR_PROTOCOL || code == PS_ERR_INTERNAL || code == PS_ERR_NOMEM;
}

const char *ps_err_name(ps_err code)
{
    static const char *const names[] = {
#define PS_ERR_NAME(name) #name,
        PS_ERR_MAP(PS_ERR_NAME)
#undef PS_ERR_NAME
    };
    return (unsigned)code < PS_ERR_COUNT ? names[code] : "UNKNOWN";
}

ps_err_saved ps_err_save(ps_err code)
{
    ps_err_saved saved = {.code = code};
    memcpy(saved.message, message, sizeof message);
    return saved;
}

ps_err ps_err_restore(const ps_err_saved *saved)
{
    memcpy(message, saved->message, sizeof message);
    return saved->code;
}
