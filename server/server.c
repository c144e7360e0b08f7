#include "server.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "chunk_codec.h"
#include "event.h"
#include "fd_limit.h"
#include "init_method.h"
#include "job_keys.h"
#include "job_start.h"
#include "local_steps.h"
#include "log.h"
#include "mem.h"
#include "open_job.h"
#include "plateau.h"
#include "procstat.h"
#include "server_gate.h"
#include "tell.h"
#include "wire_rings.h"

enum {
    STATS_TIMEOUT_MS = 5000,
    TENSORS_MS = 1000, // between two looks at whether the job still waits for tensors
    GOODBYE_MS = 5000, // once all workers have left: their goodbyes are on the way
    MAX_SOCKETS = 4096
};

struct ps_server {
    ps_server_options o;
    ps_config config;             // a view of o.config and, without a model, the workers'
    const ps_tensor_table *table; // o.table, or the workers'
    ps_open_job tensors;          // without a model: what worker 0 says
    ps_config job_config;         // its settings
    ps_config join_defaults, join_config; // with which the server joins then
    bool idle;                            // the workers have left without any tensors
    ps_curve curve;
    ps_plan plan;
    ps_step_rule rule;
    void *zmq_context;
    ps_server_gate *gate;
    int n_shards; // of this process
    ps_shard **shards;
    const char **endpoints;
    ps_member *member;
    ps_shm_door *door;
    int wakes[PS_SHM_WAKES_MAX]; // eventfds of the shards
    ps_event changed;            // the state of a shard
};

static ps_err server_check_descriptors(const ps_server *s)
{
    const ps_config *c = &s->config;
    const ps_fd_job job = {.workers = (uint64_t)s->o.n_workers,
                           .servers = (uint64_t)s->o.n_servers,
                           .shards = (uint64_t)s->n_shards,
                           .io_threads = (uint64_t)c->net.io_threads,
                           .gradnorm_links = ps_step_rule_waits(&s->rule) ||
                                             ps_config_own_pace(&s->config),
                           .hosts = s->o.hosts_coordinator,
                           .twins = c->rows.buddy,
                           .shm = c->exchange.shm != PS_SWITCH_OFF};
    const ps_fd_need need = ps_fd_need_of_server(&job);
    return ps_fd_limit_check(&need);
}

static ps_err make_context(ps_server *s)
{
    const bool patient = ps_chunk_size_is_coarse(ps_chunk_size_wanted(&s->config, false));
    PS_TRY(ps_zsock_context(s->config.net.io_threads, MAX_SOCKETS, patient,
                            &s->zmq_context));
    const int n_members = s->o.n_workers + s->n_shards; // and the shards' twins
    PS_TRY(ps_server_gate_create(s->zmq_context, &s->curve, n_members, &s->gate));
    return ps_event_init(&s->changed);
}

static ps_err make_shards(ps_server *s)
{
    const ps_shard_options options = {
        .config = &s->config,
        .table = s->o.table ? s->o.table : &s->tensors.table,
        .plan = &s->plan,
        .rule = &s->rule,
        .zmq_context = s->zmq_context,
        .curve = &s->curve,
        .gate = ps_server_gate_of(s->gate),
        .address = s->o.address,
        .n_workers = s->o.n_workers,
        .keeper = s->o.keeper,
        .rows = s->o.n_rows > 0,
    };
    size_t n = (size_t)s->n_shards;
    PS_TRY(PS_NEW(&s->shards, n, "shards"));
    PS_TRY(PS_NEW(&s->endpoints, n, "endpoints"));
    for (int i = 0; i < s->n_shards; i++) {
        PS_TRY(ps_shard_create(&options, &s->shards[i]));
        s->endpoints[i] = ps_shard_endpoint(s->shards[i]);
    }
    return PS_OK;
}

/* What depends on the tensors. */
static ps_err server_make_plan(ps_server *s, const ps_tensor_table *table)
{
    const ps_chunk_size size =
        ps_chunk_size_wanted(&s->config, ps_init_method_is_loopback(s->o.init_method));
    s->table = table;
    PS_TRY(ps_plan_init_servers(&s->plan, table, size, (uint32_t)s->o.n_servers,
                                &s->config.server));
    s->n_shards = (int)(s->plan.n_shards / (uint32_t)s->o.n_servers);
    PS_TRY(ps_step_rule_init(&s->rule, &s->config));
    return server_check_descriptors(s);
}

/* Without a model the workers' settings count. */
static void warn_of_ignored(const ps_server *s)
{
    ps_config same = s->join_config;
    same.exchange.name = s->o.config->exchange.name;
    same.server.shards = s->o.config->server.shards;
    const char *key = ps_config_difference(s->o.config, &same);
    if (key)
        PS_WARN("ignored",
                "key=%s note=\"a server without a model takes it from the workers\"",
                key);
}

/* Without a model: what the server joins with. */
static ps_err make_join_config(ps_server *s)
{
    PS_TRY(ps_open_job_config(s->o.config, &s->join_defaults, &s->join_config));
    ps_config_view(&s->config, s->o.config, &s->join_defaults);
    s->config.server.shards = s->n_shards;
    warn_of_ignored(s);
    return PS_OK;
}

ps_err ps_server_create(const ps_server_options *options, ps_server **out)
{
    *out = NULL;
    ps_server *s;
    PS_TRY(PS_NEW(&s, 1, "a server"));
    s->o = *options;
    ps_local_steps_outer(&s->config, options->config);
    s->n_shards =
        options->config->server.shards ? (int)options->config->server.shards : 1;
    ps_err err;
    PS_TRY_GOTO(options->table ? server_make_plan(s, options->table)
                               : make_join_config(s),
                err, out);
    PS_TRY_GOTO(ps_curve_init(&s->curve, &s->config, PS_ROLE_SERVER), err, out);
    PS_TRY_GOTO(make_context(s), err, out);
    PS_TRY_GOTO(make_shards(s), err, out);
    PS_TRY_GOTO(ps_server_gate_start(s->gate), err, out);
    *out = s;
    return PS_OK;
out:
    ps_server_destroy(&s);
    return err;
}

uint64_t ps_server_plan_hash(const ps_server *s)
{
    return s->o.table ? s->plan.hash : PS_OPEN_JOB_PLAN;
}

const ps_config *ps_server_join_config(const ps_server *s)
{
    return s->o.table ? s->o.config : &s->join_config;
}

const char *const *ps_server_endpoints(const ps_server *s, int *n)
{
    *n = s->n_shards;
    return s->endpoints;
}

/* Of parameters, that worker 0 tells the numbers of. */
static int server_n_groups(const ps_server *s)
{
    const int rates = ps_plateau_groups(&s->config);
    return rates > 0 ? rates : s->tensors.n_groups;
}

/* For the door; none with more shards than a worker can wake. */
static ps_shm_door_rings rings_of(ps_server *s)
{
    if (s->n_shards > PS_SHM_WAKES_MAX) return (ps_shm_door_rings){0};
    for (int i = 0; i < s->n_shards; i++)
        s->wakes[i] = ps_shard_wake_fd(s->shards[i]);
    return (ps_shm_door_rings){.bytes = ps_wire_rings_bytes(&s->plan, server_n_groups(s)),
                               .wakes = s->wakes,
                               .n_wakes = s->n_shards};
}

static ps_err server_open_door(ps_server *s, ps_deadline deadline)
{
    const ps_roster *roster = ps_member_roster(s->member);
    const char *name = "";
    if (s->config.exchange.shm != PS_SWITCH_OFF) {
        const ps_shm_door_rings rings = rings_of(s);
        PS_TRY(ps_shm_door_create(roster->nonce, (uint32_t)roster->n_workers,
                                  s->table->arena_count * sizeof(float), &rings,
                                  &s->door));
        name = ps_shm_door_name(s->door);
    }
    const ps_job_key key = ps_job_key_shm(PS_ROLE_SERVER, ps_member_rank(s->member));
    return ps_member_put(s->member, key.text, name, strlen(name), deadline);
}

/* Worker 0 may have to read a checkpoint first. */
static ps_deadline start_deadline(const ps_server *s)
{
    const ps_config *c = &s->config;
    return ps_deadline_in_ms((uint64_t)c->net.join_timeout_ms +
                             (uint64_t)c->train.file_timeout_ms);
}

/* Waits for worker 0's tensors while the job lives: its program may do a lot before. */
static ps_err await_tensors(ps_server *s, ps_open_job *out)
{
    struct pollfd end = {.fd = ps_member_end_fd(s->member), .events = POLLIN};
    for (bool found = false; !found;) {
        PS_TRY(ps_open_job_get(s->member, ps_deadline_in_ms(TENSORS_MS), out, &found));
        s->idle = !found && poll(&end, 1, 0) > 0;
        if (s->idle) return PS_OK;
    }
    return PS_OK;
}

/* Takes the workers' settings and tensors, and compares the plan. */
static ps_err take_tensors(ps_server *s)
{
    ps_open_job *job = &s->tensors;
    PS_TRY(ps_config_load(&s->job_config, NULL, (const char *const *)job->settings,
                          job->n_settings));
    ps_config_view(&s->config, s->o.config, &s->job_config);
    if (s->config.server.shards != s->n_shards)
        return ps_err_set(PS_ERR_CONFIG,
                          "the workers want server.shards %" PRId64 ", but server %d was "
                          "started with %d",
                          s->config.server.shards, ps_member_rank(s->member),
                          s->n_shards);
    job->table.optional = ps_config_may_lack_gradients(&s->config);
    ps_open_job_set_owners(job);
    PS_TRY(server_make_plan(s, &job->table));
    if (s->plan.hash == job->plan_hash) return PS_OK;
    return ps_err_set(PS_ERR_PEER,
                      "server %d cuts the tensors into other chunks than worker 0: give "
                      "all processes the same address of the coordinator",
                      ps_member_rank(s->member));
}

/* Lets the workers of a table in. */
static ps_err server_open_table(ps_server *s)
{
    if (!s->o.table) PS_TRY(take_tensors(s));
    const ps_roster *roster = ps_member_roster(s->member);
    if (!roster->secrets)
        return ps_err_set(PS_ERR_PROTOCOL, "a roster without the workers' secrets");
    ps_server_gate_open(s->gate, roster->secrets, ps_roster_n_secrets(roster));
    return server_open_door(s, ps_config_join_deadline(&s->config));
}

static ps_err server_start_shards(ps_server *s, const ps_job_start *told)
{
    ps_member *member = s->member;
    const ps_job_start start = ps_job_start_of_exchange(told, s->o.config);
    PS_TRY(ps_job_start_rule(&start, &s->config, &s->rule));
    for (int i = 0; i < s->n_shards; i++) {
        const ps_shard_job job = {
            .index = (uint32_t)(ps_member_rank(member) * s->n_shards + i),
            .member = member,
            .n_workers = ps_member_roster(member)->n_workers,
            .total_steps = start.total_steps,
            .first_step = start.step,
            .ahead = start.ahead,
            .mean = s->tensors.mean,
            .n_groups = server_n_groups(s),
            .numbers = s->tensors.numbers,
            .rows = s->o.table ? s->o.rows : s->tensors.rows,
            .n_rows = s->o.table ? s->o.n_rows : s->tensors.n_rows,
            .door = s->door,
            .changed = &s->changed,
        };
        PS_TRY(ps_shard_start(s->shards[i], &job));
    }
    if (s->config.rows.buddy) ps_tell("buddies", "{}");
    return PS_OK;
}

/* Tells workers to which points embedding tables can go back. */
static ps_err server_tell_points(const ps_server *s)
{
    const int rank = ps_member_rank(s->member);
    const ps_job_key key = ps_job_key_rows(rank);
    uint64_t points[PS_ROW_MARKS];
    const uint32_t shards = (uint32_t)s->n_shards;
    const int before = (rank + s->o.n_servers - 1) % s->o.n_servers;
    const int of[2] = {rank, before}; // its own rows, and those that it keeps as a twin
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    ps_mp_write_array(&w, 2);
    for (int k = 0; k < 2; k++) {
        const uint32_t n =
            ps_rows_keeper_points(s->o.keeper, (uint32_t)of[k] * shards, shards, points);
        ps_mp_write_array(&w, n);
        for (uint32_t i = 0; i < n; i++)
            ps_mp_write_uint(&w, points[i]);
    }
    return ps_member_put_written(s->member, key.text, &w, start_deadline(s));
}

ps_err ps_server_start(ps_server *s, ps_member *member)
{
    s->member = member;
    if (!s->o.table || s->o.n_rows > 0) PS_TRY(server_tell_points(s));
    if (!s->o.table) PS_TRY(await_tensors(s, &s->tensors));
    if (s->idle) return PS_OK;
    PS_TRY(server_open_table(s));
    ps_job_start start;
    PS_TRY(ps_job_start_get(member, &start, start_deadline(s)));
    return server_start_shards(s, &start);
}

/* Worker 0 has the state of the table before, and brings it with the next one. It says
 * how that one starts when all workers have come back. Until then the shards answer a
 * worker that has lost the answer to its goodbye. */
static ps_err server_serve_next_table(ps_server *s)
{
    ps_open_job next = {0};
    ps_job_start start;
    ps_member_next_table(s->member);
    ps_err err = await_tensors(s, &next);
    if (err == PS_OK && !s->idle)
        err = ps_job_start_get(s->member, &start, start_deadline(s));
    if (err != PS_OK || s->idle) {
        ps_open_job_fini(&next);
        return err;
    }
    for (int i = 0; i < s->n_shards; i++)
        ps_shard_clear(s->shards[i]);
    ps_shm_door_destroy(&s->door);
    ps_plan_fini(&s->plan);
    ps_open_job_fini(&s->tensors);
    ps_config_fini(&s->job_config);
    s->tensors = next;
    PS_TRY(server_open_table(s));
    return server_start_shards(s, &start);
}

static bool all_done(const ps_server *s)
{
    for (int i = 0; i < s->n_shards; i++) {
        const ps_shard_state state = ps_shard_get_state(s->shards[i]);
        if (state != PS_SHARD_DONE && state != PS_SHARD_PAUSED) return false;
    }
    return true;
}

/* Waits until every shard has every worker's goodbye. Once all workers have left the job
 * it waits only GOODBYE_MS longer: a goodbye may have been lost on its way. */
static ps_err wait_for_goodbyes(ps_server *s)
{
    struct pollfd items[] = {{.fd = ps_event_fd(&s->changed), .events = POLLIN},
                             {.fd = ps_member_abort_fd(s->member), .events = POLLIN},
                             {.fd = ps_member_end_fd(s->member), .events = POLLIN}};
    ps_deadline deadline = {UINT64_MAX};
    while (!all_done(s) && !ps_deadline_passed(deadline)) {
        if (poll(items, 3, ps_deadline_left_ms(deadline)) < 0 && errno != EINTR)
            return ps_err_errno(PS_ERR_IO, "poll");
        PS_TRY(ps_member_check(s->member));
        if (items[2].revents) {
            deadline = ps_deadline_in_ms(GOODBYE_MS);
            items[2].fd = -1; // it stays readable
        }
        if (items[0].revents) ps_event_clear(&s->changed);
    }
    if (!all_done(s))
        PS_WARN("goodbye",
                "note=\"a worker left the job, but its goodbye did not arrive\"");
    return PS_OK;
}

/* A list of what it has of each embedding table; NULL where there is none. */
static json_t *server_tables_json(ps_server *s)
{
    ps_row_figure_list tables = {0};
    json_t *list = NULL;
    if (ps_server_tables(s, &tables) == PS_OK && tables.n > 0)
        list = ps_row_figure_list_json(&tables);
    free(tables.tables);
    return list;
}

static ps_err put_stats(ps_server *s)
{
    ps_shard_stats stats;
    ps_server_get_stats(s, &stats);
    const ps_job_key key = ps_job_key_stats(ps_member_rank(s->member));
    json_t *json = json_pack(
        "{s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I}", "rank", ps_member_rank(s->member),
        "shards", s->n_shards, "peak_rss_bytes", (json_int_t)ps_procstat_peak_rss(),
        "bytes_received", (json_int_t)stats.bytes_received, "bytes_sent",
        (json_int_t)stats.bytes_sent, "pushes", (json_int_t)stats.pushes, "repeated",
        (json_int_t)stats.repeated, "strangers", (json_int_t)stats.strangers);
    json_t *tables = server_tables_json(s);
    if (tables) json_object_set_new(json, "tables", tables);
    char *text = json_dumps(json, JSON_COMPACT);
    json_decref(json);
    if (!text) return ps_err_set(PS_ERR_NOMEM, "no memory for the server's figures");
    const ps_err err = ps_member_put(s->member, key.text, text, strlen(text),
                                     ps_deadline_in_ms(STATS_TIMEOUT_MS));
    free(text);
    return err;
}

ps_err ps_server_wait(ps_server *s)
{
    while (!s->idle) {
        PS_TRY(wait_for_goodbyes(s));
        if (ps_shard_get_state(s->shards[0]) != PS_SHARD_PAUSED) break;
        PS_TRY(server_serve_next_table(s));
    }
    // Missing figures do not fail the job. If the coordinator is gone, it has already
    // told everybody about the end.
    if (put_stats(s) != PS_OK) PS_WARN("stats", "reason=\"%s\"", ps_err_message());
    PS_TRY(ps_member_wait_end(s->member));
    // The coordinator lives in server 0's process. It stays until all others know the
    // end: to a member whose connection was just lost it has to be told again.
    if (ps_member_rank(s->member) != 0) return PS_OK;
    return ps_member_leave(s->member, ps_deadline_in_ms(GOODBYE_MS));
}

void ps_server_get_stats(const ps_server *s, ps_shard_stats *out)
{
    *out = (ps_shard_stats){0};
    for (int i = 0; i < s->n_shards; i++) {
        ps_shard_stats one;
        ps_shard_get_stats(s->shards[i], &one);
        out->bytes_received += one.bytes_received;
        out->bytes_sent += one.bytes_sent;
        out->pushes += one.pushes;
        out->repeated += one.repeated;
        out->strangers += one.strangers;
        out->sum_ns += one.sum_ns;
        out->apply_ns += one.apply_ns;
        out->rows += one.rows;
        out->rows_bytes += one.rows_bytes;
        out->rows_stepped += one.rows_stepped;
        out->rows_dropped += one.rows_dropped;
        if (one.steps > out->steps) out->steps = one.steps;
    }
}

void ps_server_sample(void *server, ps_metric_values *v)
{
    const ps_server *s = server;
    ps_shard_stats stats;
    ps_server_get_stats(s, &stats);
    ps_metric_set(v, PS_METRIC_STEP, (double)stats.steps);
    ps_metric_set(v, PS_METRIC_SUM_SECONDS, (double)stats.sum_ns * 1e-9);
    ps_metric_set(v, PS_METRIC_APPLY_SECONDS, (double)stats.apply_ns * 1e-9);
    ps_metric_set(v, PS_METRIC_BYTES_SENT, (double)stats.bytes_sent);
    ps_metric_set(v, PS_METRIC_BYTES_RECEIVED, (double)stats.bytes_received);
    ps_metric_set(v, PS_METRIC_PUSHES, (double)stats.pushes);
    ps_metric_set(v, PS_METRIC_REPEATED, (double)stats.repeated);
    ps_metric_set(v, PS_METRIC_STRANGERS, (double)stats.strangers);
    if (stats.rows + stats.rows_stepped == 0) return; // no embedding tables
    ps_metric_set(v, PS_METRIC_ROWS, (double)stats.rows);
    ps_metric_set(v, PS_METRIC_ROWS_BYTES, (double)stats.rows_bytes);
    ps_metric_set(v, PS_METRIC_ROWS_STEPPED, (double)stats.rows_stepped);
    ps_metric_set(v, PS_METRIC_ROWS_DROPPED, (double)stats.rows_dropped);
}

ps_err ps_server_tables(void *server, ps_row_figure_list *tables)
{
    const ps_server *s = server;
    for (int i = 0; i < s->n_shards; i++)
        PS_TRY(ps_shard_add_tables(s->shards[i], tables));
    return PS_OK;
}

void ps_server_stop(ps_server *s)
{
    for (int i = 0; s->shards && i < s->n_shards; i++)
        if (s->shards[i]) ps_shard_stop(s->shards[i]);
    ps_server_gate_destroy(&s->gate); // it uses the member's secrets
}

void ps_server_destroy(ps_server **pointer)
{
    ps_server *s = *pointer;
    if (!s) return;
    ps_server_stop(s);
    // libzmq may still be sending weights, so they are freed after the context.
    if (s->zmq_context) zmq_ctx_term(s->zmq_context);
    for (int i = 0; s->shards && i < s->n_shards; i++)
        ps_shard_destroy(&s->shards[i]);
    ps_shm_door_destroy(&s->door);
    free(s->shards);
    free(s->endpoints);
    ps_event_fini(&s->changed);
    ps_plan_fini(&s->plan);
    ps_open_job_fini(&s->tensors);
    ps_config_fini(&s->job_config);
    ps_config_fini(&s->join_defaults);
    free(s);
    *pointer = NULL;
}
