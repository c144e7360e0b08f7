#include "pstrain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "program_settings.h"
#include "pstrain_device.h"
#include "pstrain_state.h"

#define SAME(name)                                                                       \
    _Static_assert((int)PSTRAIN_ERR_##name == (int)PS_ERR_##name, "one number")
SAME(ARG);
SAME(CONFIG);
SAME(IO);
SAME(FORMAT);
SAME(NOMEM);
SAME(NET);
SAME(TIMEOUT);
SAME(PROTOCOL);
SAME(PEER);
SAME(SHAPE);
SAME(NUMERIC);
SAME(UNSUPPORTED);
SAME(INTERRUPTED);
SAME(INTERNAL);
_Static_assert((int)PSTRAIN_LOG_ERROR == (int)PS_LOG_ERROR, "one number");

/* --- without a session ------------------------------------------------------------- */

const char *pstrain_error(void)
{
    return ps_err_message();
}

const char *pstrain_status_name(int status)
{
    return status >= 0 && status < PS_ERR_COUNT ? ps_err_name((ps_err)status) : "?";
}

const char *pstrain_version(void)
{
    return PS_VERSION;
}

int pstrain_api_version(void)
{
    return PSTRAIN_API_MAJOR * 1000 + PSTRAIN_API_MINOR;
}

/* The program's function; set while no session exists. */
static struct {
    pstrain_log_fn fn;
    void *ctx;
} sink;

static void log_line(void *ctx, ps_log_level level, const char *text)
{
    sink.fn(sink.ctx, (int)level, text);
}

void pstrain_set_log(pstrain_log_fn log, void *ctx, int level)
{
    sink.fn = log;
    sink.ctx = ctx;
    ps_log_set_sink(log ? log_line : NULL, NULL, (ps_log_level)level);
}

/* --- settings ---------------------------------------------------------------------- */

static ps_err add_setting(pstrain_session *s, const char *setting)
{
    char **next;
    PS_TRY(PS_NEW(&next, (size_t)s->n_settings + 1, "settings"));
    if (s->n_settings) memcpy(next, s->settings, (size_t)s->n_settings * sizeof *next);
    free(s->settings);
    s->settings = next;
    PS_TRY(ps_mem_strdup(&next[s->n_settings], setting));
    s->n_settings++;
    return PS_OK;
}

ps_err pstrain_add_settings(pstrain_session *s, const char *const *settings, int n)
{
    for (int i = 0; i < n; i++) {
        if (!settings[i]) return ps_err_set(PS_ERR_ARG, "setting %d is NULL", i);
        if (!ps_program_setting_takers(settings[i]).program)
            return ps_program_setting_refuse(settings[i]);
        PS_TRY(add_setting(s, settings[i]));
    }
    return PS_OK;
}

/* --- create ------------------------------------------------------------------------ */

/* What the program gave, as the command line of a worker: the reader knows which
 * variables of the environment stand for what is missing. */
typedef struct arguments {
    char *argv[12];
    int argc;
    char rank[32], world_size[32], servers[32];
    ps_cli cli;
} arguments;

static void add_argument(arguments *a, const char *flag, const char *value)
{
    a->argv[a->argc++] = (char *)(uintptr_t)flag;
    a->argv[a->argc++] = (char *)(uintptr_t)value;
}

static void add_number(arguments *a, const char *flag, char text[32], int number)
{
    snprintf(text, 32, "%d", number);
    add_argument(a, flag, text);
}

static ps_err read_environment(const pstrain_options *o, arguments *a)
{
    static const ps_cli_program program = {.name = "libpstrain"};
    a->argv[a->argc++] = (char *)(uintptr_t)program.name;
    if (o->init_method) add_argument(a, "--init-method", o->init_method);
    if (o->rank_plus_1) add_number(a, "--rank", a->rank, o->rank_plus_1 - 1);
    if (o->world_size) add_number(a, "--world-size", a->world_size, o->world_size);
    if (o->servers_plus_1) add_number(a, "--servers", a->servers, o->servers_plus_1 - 1);
    return ps_cli_parse(&a->cli, &program, a->argc, a->argv, stdout);
}

/* Sizes first, and an exchange that suits them; the program's settings may choose
 * another. */
static ps_err add_sizes(pstrain_session *s)
{
    char workers[40], servers[40];
    const char *exchange = s->servers          ? "exchange.name=ps"
                           : s->world_size > 1 ? "exchange.name=allreduce"
                                               : "exchange.name=none";
    snprintf(workers, sizeof workers, "job.workers=%d", s->world_size);
    snprintf(servers, sizeof servers, "job.servers=%d", s->servers);
    PS_TRY(add_setting(s, workers));
    PS_TRY(add_setting(s, servers));
    return add_setting(s, exchange);
}

static ps_err library_fill(pstrain_session *s, const pstrain_options *o,
                           const arguments *a)
{
    s->wanted_rank = a->cli.rank;
    s->world_size = a->cli.world_size < 0 ? 1 : a->cli.world_size;
    s->servers = a->cli.servers < 0 ? 0 : a->cli.servers;
    if (s->wanted_rank >= s->world_size)
        return ps_err_set(PS_ERR_ARG, "rank %d does not fit a job of %d workers",
                          s->wanted_rank, s->world_size);
    if (o->init_method || s->world_size + s->servers > 1)
        PS_TRY(ps_mem_strdup(&s->init_method, a->cli.init_method));
    PS_TRY(add_sizes(s));
    for (int i = 0; i < a->cli.n_overrides; i++) // the environment's: the job's keys
        PS_TRY(add_setting(s, a->cli.overrides[i]));
    PS_TRY(pstrain_add_settings(s, o->settings, o->n_settings));
    s->n_own_settings = s->n_settings;
    PS_TRY(ps_config_load(&s->config, NULL, (const char *const *)s->settings,
                          s->n_settings));
    return ps_open_job_config(&s->config, &s->join_defaults, &s->join_config);
}

static ps_err library_check_options(const pstrain_options *o)
{
    if (!o) return ps_err_set(PS_ERR_ARG, "pstrain_create: the options are NULL");
    if (o->struct_size < offsetof(pstrain_options, interrupted))
        return ps_err_set(PS_ERR_ARG,
                          "pstrain_create: struct_size %zu is not a size of "
                          "pstrain_options",
                          o->struct_size);
    if (o->rank_plus_1 < 0 || o->world_size < 0 || o->servers_plus_1 < 0 ||
        o->n_settings < 0)
        return ps_err_set(PS_ERR_ARG,
                          "pstrain_create: a number of the options is below 0");
    return PS_OK;
}

static ps_err library_create(const pstrain_options *given, pstrain_session **out)
{
    pstrain_options o = {0};
    pstrain_session *s;
    arguments a = {.argc = 0};
    PS_TRY(library_check_options(given));
    memcpy(&o, given, given->struct_size < sizeof o ? given->struct_size : sizeof o);
    PS_TRY(PS_NEW(&s, 1, "a session"));
    ps_life_init(&s->life);
    pthread_mutex_init(&s->lock, NULL);
    s->pid = getpid();
    s->rank = -1;
    s->interrupted = o.interrupted;
    s->interrupted_ctx = o.interrupted_ctx;
    ps_err err = read_environment(&o, &a);
    if (err == PS_OK) err = library_fill(s, &o, &a);
    ps_cli_fini(&a.cli);
    *out = s;
    if (err != PS_OK) pstrain_destroy(out);
    return err;
}

int pstrain_create(const pstrain_options *options, pstrain_session **out)
{
    if (!out) return ps_err_set(PS_ERR_ARG, "pstrain_create: out is NULL");
    *out = NULL;
    return (int)library_create(options, out);
}

/* --- join -------------------------------------------------------------------------- */

static ps_err library_join(pstrain_session *s)
{
    if (s->world_size + s->servers > 1) {
        const ps_member_options options = {.config = &s->join_config,
                                           .role = PS_ROLE_WORKER,
                                           .rank = s->wanted_rank,
                                           .world_size = s->world_size,
                                           .n_servers = s->servers,
                                           .init_method = s->init_method,
                                           .plan_hash = PS_OPEN_JOB_PLAN,
                                           .local_rank = -1};
        PS_TRY(ps_member_join(&options, &s->member));
    }
    s->rank = s->member ? ps_member_rank(s->member) : 0;
    ps_life_reach(&s->life, PS_STAGE_JOINED);
    return PS_OK;
}

int pstrain_join(pstrain_session *s)
{
    PSTRAIN_CALL(s, PSTRAIN_LANE_MAIN, PS_IN_CREATED, library_join(s));
}

int pstrain_rank(const pstrain_session *s)
{
    return s ? s->rank : -1;
}

int pstrain_world_size(const pstrain_session *s)
{
    return s ? s->world_size : -1;
}

int pstrain_servers(const pstrain_session *s)
{
    return s ? s->servers : -1;
}

/* --- the end ----------------------------------------------------------------------- */

int pstrain_should_stop(const pstrain_session *s)
{
    return s && ps_life_stage(&s->life) != PS_STAGE_CREATED &&
           ps_member_interrupted(s->member);
}

static ps_err close_job(pstrain_session *s)
{
    const ps_stage stage = ps_life_stage(&s->life);
    PS_TRY(pstrain_device_settle(s));
    if (s->links) ps_links_bye(s->links);
    if (stage == PS_STAGE_STARTED)
        return s->reduces ? pstrain_reducing_stop(s) : ps_session_close(s->session);
    if (stage == PS_STAGE_OPEN) return ps_session_withdraw(s->session);
    if (s->member)
        PS_TRY(ps_member_leave(s->member, ps_config_step_deadline(pstrain_config(s))));
    ps_life_reach(&s->life, PS_STAGE_CLOSED);
    return PS_OK;
}

int pstrain_close(pstrain_session *s)
{
    PSTRAIN_CALL(s, PSTRAIN_LANE_MAIN, PS_IN_MEMBER, close_job(s));
}

void pstrain_abort(pstrain_session *s, const char *reason)
{
    if (!s || getpid() != s->pid) return;
    const ps_stage stage = ps_life_stage(&s->life);
    if (stage == PS_STAGE_CLOSED) return;
    if (stage != PS_STAGE_CREATED && s->member)
        ps_member_abort(s->member, PS_ERR_INTERRUPTED,
                        reason ? reason : "a worker aborted the job");
    atomic_store(&s->aborted, true);
}

void pstrain_destroy(pstrain_session **session)
{
    pstrain_session *s = session ? *session : NULL;
    if (!s) return;
    *session = NULL;
    if (getpid() != s->pid) return; // the threads are the parent's
    ps_links_close(&s->links);
    pstrain_device_destroy(&s->device);
    pstrain_reducing_destroy(&s->reducing);
    s->n_own_settings = 0;
    pstrain_forget_table(s);
    ps_member_destroy(&s->member);
    free(s->settings);
    free(s->init_method);
    ps_config_fini(&s->config);
    ps_config_fini(&s->join_defaults);
    ps_life_fini(&s->life);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
