#include "joining.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "interrupt.h"
#include "log.h"
#include "mem.h"
#include "procstat.h"
#include "tell.h"

enum {
    UNANSWERED_MS = 3000,  // after that the address is looked up again
    SOON_MS = 50,          // to the next question at the door, where members join again
    DEAF_MS = 300,         // there; then over a new connection, and after twice as long
    REFUSED_PAUSE_MS = 25, // after a refusal for now
    MANY_REFUSALS = 40,    // after that many the pause is longer
    LONG_PAUSE_MS = 250
};

static ps_deadline joining_earlier(ps_deadline a, ps_deadline b)
{
    return a.at_ns < b.at_ns ? a : b;
}

static void pause_ms(long ms)
{
    const struct timespec pause = {.tv_nsec = ms * 1000000L};
    nanosleep(&pause, NULL);
}

static ps_role coordinators_role(const ps_member_options *o)
{
    return o->n_servers > 0 ? PS_ROLE_SERVER : PS_ROLE_WORKER;
}

static bool joining_hosts_coordinator(const ps_member_options *o)
{
    return o->rank == 0 && o->role == coordinators_role(o);
}

/* True for "localhost" and literal addresses, which mean the same on every host. Another
 * name that resolves to the loopback here (Debian's 127.0.1.1) leads elsewhere on other
 * hosts. */
static bool says_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || ps_net_is_literal(host);
}

static bool is_wildcard(const char *host)
{
    return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0 ||
           strcmp(host, "*") == 0;
}

static bool stays_here(const ps_config *config)
{
    return !config->net.curve[0] && !config->net.insecure;
}

/* The address of this process. local: as for find_address. */
static ps_err choose_address(const ps_config *config, const char *host, const char *local,
                             char out[PS_ADDRESS_MAX])
{
    if (config->net.interface[0])
        return ps_net_interface_address(config->net.interface, out);
    const bool here = stays_here(config);
    if (local[0] && (!ps_net_is_loopback(local) || says_loopback(host) || here))
        snprintf(out, PS_ADDRESS_MAX, "%s", local);
    else if (here)
        snprintf(out, PS_ADDRESS_MAX, "127.0.0.1");
    else
        ps_net_default_address(out);
    return PS_OK;
}

/* local: the source address of the route to the init method's host; empty when there is
 * no host. */
static ps_err find_address(const ps_config *config, const ps_init_method *i,
                           ps_deadline deadline, char local[PS_ADDRESS_MAX],
                           char out[PS_ADDRESS_MAX])
{
    local[0] = '\0';
    bool named = !i->is_file && !is_wildcard(i->host);
    ps_err err = named ? ps_net_route_address(i->host, deadline, local) : PS_OK;
    if (err == PS_ERR_TIMEOUT)
        return ps_err_prefix(
            err, "the coordinator was not reached within net.join_timeout_ms");
    PS_TRY(err);
    return choose_address(config, i->host, local, out);
}

ps_err ps_joining_address(const ps_config *config, const char *init_method,
                          ps_deadline deadline, char out[PS_ADDRESS_MAX])
{
    ps_init_method i = {.is_file = true};
    char local[PS_ADDRESS_MAX];
    if (init_method) PS_TRY(ps_init_method_parse(init_method, &i));
    return find_address(config, &i, deadline, local, out);
}

/* The address where this process's coordinator binds, and this process's address. */
static ps_err choose_binding(ps_joining *j, char *where, int cap)
{
    const ps_init_method *i = &j->init;
    char local[PS_ADDRESS_MAX];
    PS_TRY(find_address(j->o.config, i, j->deadline, local, j->address));
    if (i->is_file) {
        ps_net_endpoint(j->address, 0, where, cap);
        return PS_OK;
    }
    // On other hosts the name may resolve to other addresses, so listen on all.
    const char *on = strcmp(i->host, "localhost") == 0                     ? local
                     : ps_net_is_literal(i->host) && !is_wildcard(i->host) ? i->host
                     : stays_here(j->o.config)                             ? j->address
                                                                           : "*";
    ps_net_endpoint(on, i->port, where, cap);
    return PS_OK;
}

uint64_t ps_joining_silence_ms(const ps_joining *j)
{
    const ps_config *config = j->o.config;
    return ps_zsock_silence_ms((uint64_t)config->net.heartbeat_ms,
                               (uint64_t)config->net.dead_after_ms);
}

/* The endpoint, with that address in place of a wildcard host. */
static void endpoint_at(const char *given, const char *address, char out[PS_ENDPOINT_MAX])
{
    if (strncmp(given, "tcp://0.0.0.0:", 14) == 0 ||
        strncmp(given, "tcp://[::]:", 11) == 0 || strncmp(given, "tcp://*:", 8) == 0)
        ps_net_endpoint(address, ps_net_port_of(given), out, PS_ENDPOINT_MAX);
    else
        snprintf(out, PS_ENDPOINT_MAX, "%s", given);
}

static ps_err joining_publish(ps_joining *j)
{
    if (!j->init.is_file) return PS_OK;
    ps_init_record r = {.port = ps_net_port_of(j->coordinator_endpoint),
                        .nonce = ps_coordinator_nonce(j->coordinator)};
    memcpy(r.address, j->address, sizeof r.address);
    PS_TRY(ps_init_file_write(j->init.path, &r));
    j->file_nonce = r.nonce;
    return PS_OK;
}

static ps_err start_coordinator(ps_joining *j)
{
    const ps_member_options *o = &j->o;
    char where[PS_ENDPOINT_MAX];
    PS_TRY(choose_binding(j, where, sizeof where));
    ps_coordinator_options c = {.where = where,
                                .curve = &j->curve,
                                .job = o->config->job.name,
                                .n_servers = o->n_servers,
                                .n_workers = o->world_size,
                                .min_workers = o->min_workers,
                                .expected_workers = o->expected_workers,
                                .goes_on = o->goes_on,
                                .wait_ms = (uint64_t)o->config->recovery.wait_ms,
                                .config_hash = ps_config_hash(o->config),
                                .plan_hash = o->plan_hash,
                                .heartbeat_ms = (uint64_t)j->o.config->net.heartbeat_ms,
                                .dead_after_ms = (uint64_t)j->o.config->net.dead_after_ms,
                                .recovers = o->config->recovery.rejoins > 0,
                                .names_straggler = o->n_servers > 0 &&
                                                   ps_config_names_straggler(o->config),
                                .view = o->view};
    ps_config_hash_sections(o->config, &c.sections);
    PS_TRY(ps_coordinator_create(&c, &j->coordinator));
    endpoint_at(ps_coordinator_endpoint(j->coordinator), "127.0.0.1",
                j->coordinator_endpoint);
    return joining_publish(j);
}

/* Finds the coordinator: its endpoint, this process's address, and the nonce to join
 * with. */
static ps_err find_coordinator(ps_joining *j)
{
    j->nonce = 0;
    if (j->coordinator) return PS_OK;
    ps_deadline deadline = j->deadline;
    char remote[PS_ADDRESS_MAX], local[PS_ADDRESS_MAX] = "";
    const char *host = j->init.host;
    int port = j->init.port;
    ps_init_record record;
    if (j->init.is_file) {
        PS_TRY(ps_init_file_read(j->init.path, &record));
        host = record.address;
        port = record.port;
        j->nonce = record.nonce;
        // The file may be stale, so it is read again soon.
        deadline = joining_earlier(deadline, ps_deadline_in_ms(500));
    }
    PS_TRY(ps_net_dial(host, port, deadline, remote, local));
    ps_net_endpoint(remote, port, j->coordinator_endpoint,
                    sizeof j->coordinator_endpoint);
    return choose_address(j->o.config, host, local, j->address);
}

/* This member's entry; wildcard hosts in its endpoints become its address. */
static ps_err write_entry(const ps_joining *j, ps_mp_writer *w)
{
    const ps_member_options *o = &j->o;
    ps_host host;
    ps_host_find(&host);
    ps_roster_entry e = {.role = o->role, .rank = o->rank};
    memcpy(e.host, host.name, sizeof e.host);
    memcpy(e.boot_id, host.boot_id, sizeof e.boot_id);
    memcpy(e.net_ns, host.net_ns, sizeof e.net_ns);
    ps_roster_entry_set_part(&e, o->config->net.host);
    ps_err err = PS_NEW(&e.endpoints, (size_t)o->n_endpoints, "endpoints");
    for (int i = 0; i < o->n_endpoints && err == PS_OK; i++, e.n_endpoints++) {
        char endpoint[PS_ENDPOINT_MAX];
        endpoint_at(o->endpoints[i], j->address, endpoint);
        err = ps_mem_strdup(&e.endpoints[i], endpoint);
        if (err != PS_OK) break;
    }
    if (err == PS_OK) ps_roster_entry_write(w, &e);
    ps_roster_entry_fini(&e);
    return err;
}

static void write_sections(const ps_config *config, ps_mp_writer *w)
{
    ps_config_sections s;
    ps_config_hash_sections(config, &s);
    ps_mp_write_array(w, (size_t)s.n);
    for (int i = 0; i < s.n; i++)
        ps_mp_write_uint(w, s.hashes[i]);
}

static ps_err send_join(ps_joining *j)
{
    const ps_member_options *o = &j->o;
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    ps_err err = write_entry(j, &w);
    write_sections(o->config, &w);
    if (err == PS_OK) err = ps_mp_writer_end(&w);
    ps_control c = {
        .kind = PS_CONTROL_JOIN, .nonce = j->nonce, .value = w.base, .bytes = w.used};
    c.join.config_hash = ps_config_hash(o->config);
    c.join.plan_hash = o->plan_hash;
    c.join.world_size = (uint64_t)o->world_size;
    c.join.servers = (uint64_t)o->n_servers;
    c.join.incarnation = o->incarnation;
    ps_control_set_text(&c, PS_VERSION);
    if (err == PS_OK) err = ps_control_set_name(&c, o->config->job.name);
    if (err == PS_OK) err = ps_control_send(j->door, &c);
    ps_mp_writer_fini(&w);
    return err;
}

static ps_err on_welcome(ps_joining *j, const ps_control *c)
{
    ps_err err = ps_roster_read(&j->roster, c->value, c->bytes);
    int size = j->o.role == PS_ROLE_SERVER ? j->roster.n_servers : j->roster.n_workers;
    if (err == PS_OK && c->welcome.rank >= (uint64_t)size)
        err = ps_err_set(PS_ERR_PROTOCOL, "the coordinator gave a rank out of range");
    if (err != PS_OK) {
        ps_roster_fini(&j->roster);
        return err;
    }
    j->rank = (int)c->welcome.rank;
    j->reentry = (ps_coord_orders_reentry){.push = c->welcome.push,
                                           .stretch = c->welcome.stretch,
                                           .made = c->welcome.made,
                                           .fragment = c->welcome.fragment};
    j->roster.nonce = c->nonce;
    j->roster.epoch = (uint32_t)c->welcome.epoch;
    j->joined = true;
    return PS_OK;
}

/* Goes from the door to the members' ROUTER. */
static ps_err on_admission(ps_joining *j, const ps_control *c)
{
    if (c->port == 0 || c->port > UINT16_MAX || c->bytes != sizeof j->secret)
        return ps_err_set(PS_ERR_PROTOCOL, "a malformed admission");
    ps_net_at_port(j->coordinator_endpoint, (int)c->port, j->members_endpoint,
                   sizeof j->members_endpoint);
    memcpy(&j->secret, c->value, sizeof j->secret);
    j->nonce = c->nonce;
    ps_zsock_close(&j->door);
    ps_control_id id;
    ps_control_id_make(&id, &j->secret, 0);
    const ps_zsock_options o = {.type = ZMQ_DEALER,
                                .silence_ms = ps_joining_silence_ms(j),
                                .max_message_bytes = PS_CONTROL_FRAME_MAX,
                                .routing_id = id.bytes,
                                .routing_id_bytes = sizeof id.bytes,
                                .secret = &j->secret,
                                .curve = &j->curve,
                                .peer = coordinators_role(&j->o)};
    PS_TRY(ps_zsock_open(j->zmq_context, &o, &j->dealer));
    PS_TRY(ps_zsock_monitor(j->zmq_context, j->dealer, "member", &j->monitor));
    return ps_zsock_connect(j->dealer, &j->curve, j->members_endpoint);
}

/* Adds what a person at this end needs to find the difference. */
static ps_err on_refusal(ps_joining *j, const ps_control *c)
{
    const ps_member_options *o = &j->o;
    j->refused_for_now = c->for_now == 1;
    if (j->refused_for_now) {
        memcpy(j->refusal, c->text, sizeof j->refusal);
        return PS_OK;
    }
    char rank[16] = "";
    if (o->rank >= 0) snprintf(rank, sizeof rank, " %d", o->rank);
    return ps_err_set(PS_ERR_PEER,
                      "%.600s (this is %s%s of %d workers and %d servers, version %s, "
                      "configuration hash %016" PRIx64 ")",
                      c->text, ps_role_name(o->role), rank, o->world_size, o->n_servers,
                      PS_VERSION, ps_config_hash(o->config));
}

/* Of a job that has ended before this process knew that it had begun: its connection was
 * lost meanwhile. It joins again, as the others do. */
static ps_err joining_is_over(ps_joining *j, const ps_control *c)
{
    const ps_err code = (ps_err)c->abort.code;
    const bool again = j->o.config->recovery.rejoins > 0 && ps_err_is_passing(code);
    if (!again && !(j->o.min_workers > 0 && code == PS_ERR_REGROUP))
        return ps_err_set(PS_ERR_PEER, "%s", c->text);
    PS_INFO("over", "reason=\"%s\"", c->text);
    if (code == PS_ERR_REGROUP) j->o.expected_workers = (int)c->abort.next_workers;
    j->is_over = j->refused_for_now = true;
    memcpy(j->refusal, c->text, sizeof j->refusal);
    return PS_OK;
}

/* PEER: refused, or the job is over. */
static ps_err on_join_answer(ps_joining *j, const ps_control *c)
{
    switch (c->kind) {
    case PS_CONTROL_ADMIT:
        return j->dealer ? PS_OK : on_admission(j, c);
    case PS_CONTROL_WAIT:
        memcpy(j->waiting_for, c->text, sizeof j->waiting_for);
        return PS_OK;
    case PS_CONTROL_WELCOME:
        return on_welcome(j, c);
    case PS_CONTROL_REFUSE:
        return on_refusal(j, c);
    case PS_CONTROL_ABORT:
        return joining_is_over(j, c);
    case PS_CONTROL_FAIL:
        return ps_err_set(PS_ERR_PEER, "%s", c->text);
    default:
        return PS_OK;
    }
}

bool ps_joining_is_refused(const ps_joining *j)
{
    ps_init_method at;
    return ps_init_method_parse(j->members_endpoint, &at) == PS_OK &&
           ps_net_refuses(at.host, at.port);
}

void ps_joining_close(ps_joining *j, int linger_ms)
{
    if (j->dealer) {
        zmq_socket_monitor(j->dealer, NULL, 0);
        zmq_setsockopt(j->dealer, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    }
    ps_zsock_close(&j->door);
    ps_zsock_close(&j->monitor);
    ps_zsock_close(&j->dealer);
}

static ps_err go_to_door(ps_joining *j)
{
    ps_joining_close(j, 0);
    const ps_zsock_options o = {.type = ZMQ_DEALER,
                                .max_message_bytes = PS_CONTROL_DOOR_FRAME_MAX,
                                .routing_id = j->door_id.bytes,
                                .routing_id_bytes = sizeof j->door_id.bytes,
                                .curve = &j->curve,
                                .peer = coordinators_role(&j->o)};
    PS_TRY(ps_zsock_open(j->zmq_context, &o, &j->door));
    return ps_zsock_connect(j->door, &j->curve, j->coordinator_endpoint);
}

/* JOIN at the door, HERE among the members. */
static ps_err joining_ask(ps_joining *j)
{
    if (!j->dealer) return send_join(j);
    const ps_control c = {.kind = PS_CONTROL_HERE, .nonce = j->nonce};
    return ps_control_send(j->dealer, &c);
}

/* *got: whether one came before the deadline. */
static ps_err take_answer(ps_joining *j, ps_deadline deadline, int *got)
{
    zmq_msg_t frame;
    ps_control c;
    PS_TRY(ps_control_recv(j->dealer ? j->dealer : j->door, deadline, &frame, &c, got));
    if (!*got) return PS_OK;
    j->silence =
        ps_deadline_in_ms(UNANSWERED_MS + 2 * (uint64_t)j->o.config->net.heartbeat_ms);
    ps_err err = on_join_answer(j, &c);
    zmq_msg_close(&frame);
    return err;
}

static bool is_impatient(const ps_joining *j)
{
    return !j->dealer && j->o.config->recovery.rejoins > 0;
}

/* Asks once and reads answers until the next heartbeat. After an admission the next
 * question differs and is sent at once. */
static ps_err ask_once(ps_joining *j)
{
    const bool at_door = !j->dealer;
    const uint64_t beat_ms = (uint64_t)j->o.config->net.heartbeat_ms;
    // A coordinator that was just ending takes a question and never answers it.
    const bool soon = is_impatient(j) && beat_ms > SOON_MS;
    const ps_deadline next =
        joining_earlier(ps_deadline_in_ms(soon ? SOON_MS : beat_ms), j->deadline);
    int got = 1;
    PS_TRY(ps_interrupt_check());
    PS_TRY(joining_ask(j));
    while (got && !j->joined && !j->refused_for_now && at_door == !j->dealer &&
           !ps_deadline_passed(next))
        PS_TRY(take_answer(j, next, &got));
    return PS_OK;
}

/* PS_OK without j->joined: the deadline has passed, nobody has answered for a while, or
 * it was refused for now. */
static ps_err ask_to_join(ps_joining *j)
{
    uint64_t deaf_ms = DEAF_MS;
    PS_TRY(go_to_door(j));
    ps_deadline deaf = ps_deadline_in_ms(deaf_ms);
    j->silence = ps_deadline_in_ms(UNANSWERED_MS);
    j->refused_for_now = false;
    while (!j->joined && !j->refused_for_now &&
           !ps_deadline_passed(joining_earlier(j->silence, j->deadline))) {
        ps_err err = ask_once(j);
        // libzmq has given the connection up: the other end has keys and this one has
        // none, or the other way round. It may be another job, which ends.
        if (err == PS_ERR_TIMEOUT) break;
        PS_TRY(err);
        // The end of one coordinator and the start of the next, in one process, may leave
        // a connection that nobody reads.
        if (!is_impatient(j) || !ps_deadline_passed(deaf)) continue;
        PS_TRY(go_to_door(j));
        deaf = ps_deadline_in_ms(deaf_ms *= 2);
    }
    if (j->joined || j->refused_for_now) return PS_OK;
    if (!ps_deadline_passed(j->deadline)) j->refusal[0] = '\0'; // it was another one's
    pause_ms(50);
    return PS_OK;
}

static ps_err join_timeout(const ps_joining *j)
{
    const ps_member_options *o = &j->o;
    const char *host = ps_role_name(coordinators_role(o));
    double seconds = (double)o->config->net.join_timeout_ms * 1e-3;
    if (j->waiting_for[0]) {
        ps_tell("missing", "{s:n}", "role");
        PS_INFO("missing", "parts=\"%s\"", j->waiting_for);
        return ps_err_set(PS_ERR_TIMEOUT,
                          "%s: not joined after %.1f s (net.join_timeout_ms)",
                          j->waiting_for, seconds);
    }
    if (j->refusal[0])
        return ps_err_set(PS_ERR_TIMEOUT,
                          "%s: not joined after %.1f s (net.join_timeout_ms)", j->refusal,
                          seconds);
    ps_tell("missing", "{s:s}", "role", host);
    PS_INFO("missing", "parts=\"%s 0\"", host);
    const bool hint =
        stays_here(o->config) && !ps_init_method_is_loopback(o->init_method);
    return ps_err_set(
        PS_ERR_TIMEOUT,
        "no coordinator at %s after %.1f s (%s): is %s 0 running, and is its "
        "port open?%s",
        j->init.is_file ? j->init.path : o->init_method, seconds, ps_err_message(), host,
        hint ? " A job without keys (--curve) or --insecure stays on its host." : "");
}

/* True when a new coordinator replaces the file within a short time. */
static bool file_is_replaced(const ps_joining *j)
{
    const ps_deadline patience =
        joining_earlier(ps_deadline_in_ms(UNANSWERED_MS), j->deadline);
    while (j->init.is_file && !j->coordinator && !ps_deadline_passed(patience)) {
        ps_init_record record;
        if (ps_init_file_read(j->init.path, &record) == PS_OK && record.nonce != j->nonce)
            return true;
        pause_ms(50);
    }
    return false;
}

/* As ask_to_join. A refusal may come from a job that is just ending and whose file is
 * still there. It does not count when the file is replaced. */
static ps_err ask_or_look_again(ps_joining *j)
{
    ps_err err = ask_to_join(j);
    if (err != PS_ERR_PEER) return err;
    const ps_err_saved refusal = ps_err_save(err);
    return file_is_replaced(j) ? PS_OK : ps_err_restore(&refusal);
}

/* A launcher that reads this can end a coordinator that stands still. */
static void tell_unanswered(const ps_joining *j)
{
    if (j->joined || j->refusal[0] || j->dealer || j->waiting_for[0]) return;
    const char *host = ps_role_name(coordinators_role(&j->o));
    ps_tell("silent", "{s:s, s:i}", "role", host, "rank", 0);
    PS_INFO("unanswered", "role=%s rank=0 at=%s", host, j->coordinator_endpoint);
}

/* The reason why it has not joined so far, for join_timeout. */
static void set_unanswered(const ps_joining *j)
{
    if (j->refusal[0])
        ps_err_set(PS_ERR_TIMEOUT, "%s %s", j->coordinator_endpoint, j->refusal);
    else
        ps_err_set(PS_ERR_TIMEOUT, "%s takes connections but does not answer; %s",
                   j->coordinator_endpoint,
                   j->curve.on ? "if the job runs there: are its keys (--curve) these?"
                               : "if the job runs there: does it have keys (--curve)?");
}

/* The job that is over ends with its coordinator. */
static ps_err begin_anew(ps_joining *j)
{
    if (!j->is_over || !j->coordinator) return PS_OK;
    j->is_over = false;
    ps_coordinator_destroy(&j->coordinator, NULL);
    return start_coordinator(j);
}

static ps_err join_all(ps_joining *j)
{
    if (joining_hosts_coordinator(&j->o)) PS_TRY(start_coordinator(j));
    while (!j->joined && !ps_deadline_passed(j->deadline)) {
        PS_TRY(ps_interrupt_check());
        PS_TRY(begin_anew(j));
        j->waiting_for[0] = '\0'; // the coordinator that gave it is gone
        ps_err err = find_coordinator(j);
        if (err == PS_OK) {
            PS_TRY(ask_or_look_again(j));
            tell_unanswered(j);
            if (j->refused_for_now)
                pause_ms(++j->refusals > MANY_REFUSALS ? LONG_PAUSE_MS
                                                       : REFUSED_PAUSE_MS);
            set_unanswered(j);
        } else if (j->init.is_file) {
            pause_ms(50);
        } else if (err != PS_ERR_TIMEOUT) {
            return err;
        }
    }
    return j->joined ? PS_OK : join_timeout(j);
}

static ps_err joining_check_options(const ps_member_options *o)
{
    const bool named = o->role == PS_ROLE_WORKER && o->min_workers > 0;
    int size = o->role == PS_ROLE_SERVER ? o->n_servers
               : named                   ? PS_MAX_RANKS
                                         : o->world_size;
    if (o->world_size < 1 || o->world_size > PS_MAX_RANKS || o->n_servers < 0 ||
        o->n_servers > PS_MAX_RANKS)
        return ps_err_set(PS_ERR_ARG, "a job cannot have %d servers and %d workers",
                          o->n_servers, o->world_size);
    if (o->rank < PS_RANK_NOT_0 || o->rank >= size)
        return ps_err_set(PS_ERR_ARG, "%s %d does not exist: the job has %d",
                          ps_role_name(o->role), o->rank, size);
    if (o->n_endpoints < 0 || o->n_endpoints > PS_ROSTER_ENDPOINTS_MAX)
        return ps_err_set(PS_ERR_ARG, "%d shards in one server, at most %d fit",
                          o->n_endpoints, PS_ROSTER_ENDPOINTS_MAX);
    if (!o->init_method && o->n_servers + o->world_size > 1)
        return ps_err_set(PS_ERR_ARG, "a job of several processes needs --init-method");
    return PS_OK;
}

ps_err ps_joining_run(ps_joining *j, const ps_member_options *options, void *zmq_context)
{
    *j = (ps_joining){.o = *options, .zmq_context = zmq_context};
    PS_TRY(joining_check_options(options));
    PS_TRY(ps_curve_init(&j->curve, options->config, options->role));
    int size = options->role == PS_ROLE_SERVER ? options->n_servers : options->world_size;
    // The coordinator's host must know its rank: the others expect server 0 or worker 0.
    if (!options->init_method || size == 1) j->o.rank = 0;
    if (getrandom(j->door_id.bytes, sizeof j->door_id.bytes, 0) !=
        (ssize_t)sizeof j->door_id.bytes)
        return ps_err_errno(PS_ERR_IO, "drawing a routing id");
    const char *where = options->init_method ? options->init_method : "tcp://127.0.0.1:0";
    PS_TRY(ps_init_method_parse(where, &j->init));
    j->deadline = ps_config_join_deadline(options->config);
    return join_all(j);
}

void ps_joining_fini(ps_joining *j, const char *reason)
{
    ps_coordinator_destroy(&j->coordinator, reason);
    if (j->file_nonce) ps_init_file_remove(j->init.path, j->file_nonce);
    ps_roster_fini(&j->roster);
}
