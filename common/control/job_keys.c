#include "job_keys.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((format(printf, 1, 2))) static ps_job_key job_key(const char *fmt, ...)
{
    ps_job_key key;
    PS_PRINT(key.text, fmt);
    return key;
}

ps_job_key ps_job_key_shm(ps_role role, int rank)
{
    return job_key("%s/%d/shm", ps_role_name(role), rank);
}

ps_job_key ps_job_key_rows(int server)
{
    return job_key("server/%d/rows", server);
}

ps_job_key ps_job_key_stats(int server)
{
    return job_key("server/%d/stats", server);
}

ps_job_key ps_job_key_buffers(uint64_t n)
{
    return job_key("buffers/%" PRIu64, n);
}

ps_job_key ps_job_key_reentry(uint64_t stretch)
{
    return job_key("job/place/%" PRIu64, stretch);
}

ps_job_key ps_job_key_rest(uint64_t n)
{
    return job_key("policy/%" PRIu64, n);
}

ps_job_key ps_job_key_rest_piece(uint64_t n, uint32_t k)
{
    ps_job_key key;
    snprintf(key.text, sizeof key.text, "policy/%" PRIu64 "/%" PRIu32, n, k);
    return key;
}

ps_job_key ps_job_key_piece(bool down, int rank)
{
    return job_key("%s/%d/piece", down ? "job" : "worker", rank);
}

ps_job_key ps_job_key_array(int worker)
{
    return job_key("worker/%d/array", worker);
}

ps_job_key ps_job_key_link(int worker, bool shm)
{
    return job_key("worker/%d/link/%s", worker, shm ? "shm" : "tcp");
}

static bool job_keys_begins_with(const char *key, const char *prefix)
{
    return strncmp(key, prefix, strlen(prefix)) == 0;
}

/* What follows "table/<n>/". */
static const char *without_table(const char *key)
{
    const char *end = job_keys_begins_with(key, PS_JOB_KEY_TABLE)
                          ? strchr(key + strlen(PS_JOB_KEY_TABLE), '/')
                          : NULL;
    return end ? end + 1 : key;
}

uint32_t ps_job_key_table(const char *key)
{
    return without_table(key) == key
               ? 0
               : (uint32_t)strtoul(key + strlen(PS_JOB_KEY_TABLE), NULL, 10);
}

bool ps_job_key_outlives_tables(const char *key)
{
    const char *rank = strchr(key, '/'), *what = rank ? strchr(rank + 1, '/') : NULL;
    return what && (strcmp(what, "/array") == 0 || strcmp(what, "/rows") == 0 ||
                    job_keys_begins_with(what, "/link/"));
}

bool ps_job_key_may_set(const char *key, ps_role role, int rank)
{
    static const char *const of_worker_0[] = {"job/", "file/", "buffers/", "nccl/"};
    char own[32];
    key = without_table(key);
    for (size_t i = 0; i < sizeof of_worker_0 / sizeof *of_worker_0; i++)
        if (job_keys_begins_with(key, of_worker_0[i]))
            return role == PS_ROLE_WORKER && rank == 0;
    snprintf(own, sizeof own, "%s/%d/", ps_role_name(role), rank);
    if (job_keys_begins_with(key, "server/") || job_keys_begins_with(key, "worker/"))
        return job_keys_begins_with(key, own);
    return role == PS_ROLE_WORKER;
}

bool ps_job_key_is_of_worker(const char *key, int rank)
{
    return ps_job_key_may_set(key, PS_ROLE_WORKER, rank) &&
           !ps_job_key_may_set(key, PS_ROLE_WORKER, rank == 0 ? 1 : 0);
}
