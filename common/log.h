/* Logging: an event and key=value pairs, one line each, to standard error.
 *
 *   12.345 worker/0 INFO  push step=3 chunk=7
 *
 * Time is in seconds since ps_log_init. Logged once, where it is handled; kernels never
 * log.
 */
#ifndef PS_LOG_H
#define PS_LOG_H

typedef enum ps_log_level {
    PS_LOG_DEBUG,
    PS_LOG_INFO,
    PS_LOG_WARN,
    PS_LOG_ERROR
} ps_log_level;

/* Called once by a main function before any thread starts. role is copied ("worker/0").
 */
void ps_log_init(const char *role, ps_log_level level);
/* The role again once a rank has been given; call before threads that log are started. */
void ps_log_set_role(const char *role);

void ps_log_write(ps_log_level level, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#define PS_DEBUG(event, ...) ps_log_write(PS_LOG_DEBUG, event, __VA_ARGS__)
#define PS_INFO(event, ...)  ps_log_write(PS_LOG_INFO, event, __VA_ARGS__)
#define PS_WARN(event, ...)  ps_log_write(PS_LOG_WARN, event, __VA_ARGS__)
#define PS_ERROR(event, ...) ps_log_write(PS_LOG_ERROR, event, __VA_ARGS__)

#endif
