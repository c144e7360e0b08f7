/* Errors: a code to decide by, and a message for the person who must mend it.
 *
 * Every function that can fail returns a ps_err. The message of the last failure of the
 * calling thread names the file, key, peer or tensor at fault and what would mend it.
 * A caller that knows more prefixes it with ps_err_prefix().
 */
#ifndef PS_ERR_H
#define PS_ERR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#define PS_ERR_MAP(X)                                                                    \
    X(OK)                                                                                \
    X(ARG)         /* bad argument */                                                    \
    X(CONFIG)      /* bad configuration */                                               \
    X(IO)          /* input or output failed */                                          \
    X(FORMAT)      /* malformed file */                                                  \
    X(NOMEM)       /* out of memory */                                                   \
    X(NET)         /* network failure */                                                 \
    X(TIMEOUT)     /* deadline passed */                                                 \
    X(PROTOCOL)    /* malformed or unexpected message */                                 \
    X(PEER)        /* a peer failed or does not fit this job */                          \
    X(SHAPE)       /* shapes do not fit */                                               \
    X(NUMERIC)     /* a number that is not finite */                                     \
    X(UNSUPPORTED) /* not supported by this build or machine */                          \
    X(INTERRUPTED)                                                                       \
    X(INTERNAL)                                                                          \
    X(REGROUP) /* no failure: the job goes on with other workers */

typedef enum ps_err {
#define PS_ERR_ENUM(name) PS_ERR_##name,
    PS_ERR_MAP(PS_ERR_ENUM)
#undef PS_ERR_ENUM
        PS_ERR_COUNT
} ps_err;

#define PS_OK PS_ERR_OK

/* Records the message for this thread and returns code, so that it can be returned. */
ps_err ps_err_set(ps_err code, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Puts "<prefix>: " before the present message; returns code. */
ps_err ps_err_prefix(ps_err code, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* As ps_err_set, with ": <strerror(errno)>" appended. */
ps_err ps_err_errno(ps_err code, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* The message of this thread's last failure; never NULL; valid until the next one. */
const char *ps_err_message(void);

/* "CONFIG". */
const char *ps_err_name(ps_err code);

/* Whether the failure may be gone when the job is tried again: a peer, the network or
 * memory, in contrast to a setting, a file or a number. */
bool ps_err_is_passing(ps_err code);

/* A failure that is kept for another thread, or across calls that may fail themselves. */
enum { PS_ERR_MESSAGE_BYTES = 1024 };
typedef struct ps_err_saved {
    ps_err code;
    char message[PS_ERR_MESSAGE_BYTES];
} ps_err_saved;

/* Copies the present message and adds a code. */
ps_err_saved ps_err_save(ps_err code);
/* Makes it this thread's last failure again; returns the code. */
ps_err ps_err_restore(const ps_err_saved *saved);

/* Returns on failure. For functions that have nothing to release at that point. */
#define PS_TRY(call)                                                                     \
    do {                                                                                 \
        ps_err ps_try_err_ = (call);                                                     \
        if (ps_try_err_ != PS_OK) return ps_try_err_;                                    \
    } while (0)

/* Sets err and, on failure, goes to a clean-up label. */
#define PS_TRY_GOTO(call, err, label)                                                    \
    do {                                                                                 \
        (err) = (call);                                                                  \
        if ((err) != PS_OK) goto label;                                                  \
    } while (0)

/* In a function of printf's kind: writes what it was given into the array text. */
#define PS_PRINT(text, fmt)                                                              \
    do {                                                                                 \
        va_list args;                                                                    \
        va_start(args, fmt);                                                             \
        vsnprintf(text, sizeof(text), fmt, args);                                        \
        va_end(args);                                                                    \
    } while (0)

#endif
