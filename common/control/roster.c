#include "roster.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hash.h"
#include "mem.h"
#include "procstat.h"

enum { ROSTER_ITEMS = 3, ENTRY_ITEMS = 6, ENDPOINT_BYTES = 256 };

void ps_roster_entry_write(ps_mp_writer *w, const ps_roster_entry *e)
{
    ps_mp_write_array(w, ENTRY_ITEMS);
    ps_mp_write_uint(w, (uint64_t)e->role);
    ps_mp_write_int(w, e->rank);
    ps_mp_write_str(w, e->host);
    ps_mp_write_str(w, e->boot_id);
    ps_mp_write_str(w, e->net_ns);
    ps_mp_write_array(w, (size_t)e->n_endpoints);
    for (int i = 0; i < e->n_endpoints; i++)
        ps_mp_write_str(w, e->endpoints[i]);
}

void ps_roster_entry_set_part(ps_roster_entry *e, const char *part)
{
    const size_t used = strlen(e->net_ns);
    ps_hash h;
    if (!part[0] || used == 0) return;
    ps_hash_init(&h);
    ps_hash_string(&h, part);
    snprintf(e->net_ns + used, sizeof e->net_ns - used, "/%016" PRIx64,
             ps_hash_value(&h));
}

static ps_err read_endpoints(ps_mp_reader *r, ps_roster_entry *e)
{
    size_t n = ps_mp_read_array(r, PS_ROSTER_ENDPOINTS_MAX);
    PS_TRY(PS_NEW(&e->endpoints, n, "endpoints"));
    for (size_t i = 0; i < n && !r->failed; i++) {
        char endpoint[ENDPOINT_BYTES];
        ps_mp_read_str(r, endpoint, sizeof endpoint);
        PS_TRY(ps_mem_strdup(&e->endpoints[i], endpoint));
        e->n_endpoints++;
    }
    return PS_OK;
}

ps_err ps_roster_entry_read(ps_mp_reader *r, ps_roster_entry *e)
{
    *e = (ps_roster_entry){0};
    if (ps_mp_read_array(r, ENTRY_ITEMS) != ENTRY_ITEMS) r->failed = true;
    e->role = (ps_role)ps_mp_read_uint(r, PS_ROLE_WORKER);
    e->rank = (int)ps_mp_read_int(r, PS_RANK_NOT_0, PS_MAX_RANKS - 1);
    ps_mp_read_str(r, e->host, sizeof e->host);
    ps_mp_read_str(r, e->boot_id, sizeof e->boot_id);
    ps_mp_read_str(r, e->net_ns, sizeof e->net_ns);
    PS_TRY(read_endpoints(r, e));
    if (r->failed) return ps_err_set(PS_ERR_PROTOCOL, "a malformed roster entry");
    return PS_OK;
}

void ps_roster_entry_fini(ps_roster_entry *e)
{
    for (int i = 0; i < e->n_endpoints; i++)
        free(e->endpoints[i]);
    free(e->endpoints);
    *e = (ps_roster_entry){0};
}

bool ps_roster_same_host(const ps_roster_entry *a, const ps_roster_entry *b)
{
    return a->boot_id[0] && a->net_ns[0] && strcmp(a->boot_id, b->boot_id) == 0 &&
           strcmp(a->net_ns, b->net_ns) == 0;
}

bool ps_roster_one_host(const ps_roster *r)
{
    bool one = true;
    for (int i = 0; i < r->n_workers; i++)
        one &= ps_roster_same_host(&r->workers[0], &r->workers[i]);
    for (int i = 0; i < r->n_servers; i++)
        one &= ps_roster_same_host(&r->workers[0], &r->servers[i]);
    return one;
}

int ps_roster_leader(const ps_roster *r, int rank)
{
    for (int w = 0; w < rank; w++)
        if (ps_roster_same_host(&r->workers[w], &r->workers[rank])) return w;
    return rank;
}

uint64_t ps_roster_spin_ns(const ps_roster *r, const ps_roster_entry *here,
                           int64_t threads)
{
    enum { SPIN_NS = 50000 }; // about the time in which an idle core wakes up
    ps_host host;
    ps_host_find(&host);
    int64_t running = 0;
    for (int i = 0; i < r->n_workers; i++)
        if (ps_roster_same_host(here, &r->workers[i]))
            running += threads > 0 ? threads : host.cores;
    for (int i = 0; i < r->n_servers; i++)
        if (ps_roster_same_host(here, &r->servers[i]))
            running += r->servers[i].n_endpoints;
    return running <= host.cores ? SPIN_NS : 0;
}

ps_err ps_roster_init(ps_roster *r, int n_servers, int n_workers)
{
    *r = (ps_roster){0};
    PS_TRY(PS_NEW(&r->servers, (size_t)n_servers, "roster"));
    r->n_servers = n_servers;
    PS_TRY(PS_NEW(&r->workers, (size_t)n_workers, "roster"));
    r->n_workers = n_workers;
    return PS_OK;
}

void ps_roster_fini(ps_roster *r)
{
    for (int i = 0; i < r->n_servers; i++)
        ps_roster_entry_fini(&r->servers[i]);
    for (int i = 0; i < r->n_workers; i++)
        ps_roster_entry_fini(&r->workers[i]);
    free(r->servers);
    free(r->workers);
    free(r->secrets);
    *r = (ps_roster){0};
}

void ps_roster_write(ps_mp_writer *w, const ps_roster *r)
{
    ps_mp_write_array(w, ROSTER_ITEMS);
    ps_mp_write_array(w, (size_t)r->n_servers);
    for (int i = 0; i < r->n_servers; i++)
        ps_roster_entry_write(w, &r->servers[i]);
    ps_mp_write_array(w, (size_t)r->n_workers);
    for (int i = 0; i < r->n_workers; i++)
        ps_roster_entry_write(w, &r->workers[i]);
    size_t n = r->secrets ? (size_t)ps_roster_n_secrets(r) : 0;
    ps_mp_write_bin(w, r->secrets, n * sizeof *r->secrets);
}

static ps_err read_entries(ps_mp_reader *r, ps_role role, ps_roster_entry **out, int *n)
{
    size_t count = ps_mp_read_array(r, PS_MAX_RANKS);
    PS_TRY(PS_NEW(out, count, "roster"));
    for (size_t i = 0; i < count; i++) {
        ps_roster_entry *e = &(*out)[(*n)++];
        PS_TRY(ps_roster_entry_read(r, e));
        if (e->role != role || e->rank != (int)i)
            return ps_err_set(PS_ERR_PROTOCOL,
                              "a roster with %s %d in the place of %s %d",
                              ps_role_name(e->role), e->rank, ps_role_name(role), (int)i);
    }
    return PS_OK;
}

static ps_err read_secrets(ps_mp_reader *r, ps_roster *roster)
{
    size_t bytes, all = (size_t)ps_roster_n_secrets(roster) * sizeof *roster->secrets;
    const void *secrets = ps_mp_read_bin(r, &bytes, all);
    if (bytes == 0) return PS_OK;
    if (bytes != all) r->failed = true;
    if (r->failed) return PS_OK; // the caller reports it
    PS_TRY(ps_mem_zalloc(&roster->secrets, bytes, 1, "roster"));
    memcpy(roster->secrets, secrets, bytes);
    return PS_OK;
}

ps_err ps_roster_read(ps_roster *r, const void *bytes, size_t n)
{
    *r = (ps_roster){0};
    ps_mp_reader reader;
    ps_mp_reader_init(&reader, bytes, n);
    if (ps_mp_read_array(&reader, ROSTER_ITEMS) != ROSTER_ITEMS) reader.failed = true;
    PS_TRY(read_entries(&reader, PS_ROLE_SERVER, &r->servers, &r->n_servers));
    PS_TRY(read_entries(&reader, PS_ROLE_WORKER, &r->workers, &r->n_workers));
    PS_TRY(read_secrets(&reader, r));
    if (!ps_mp_reader_end(&reader))
        return ps_err_set(PS_ERR_PROTOCOL, "a malformed roster");
    return PS_OK;
}

void ps_roster_missing_ranks(const bool *present, int n, char *out, size_t cap)
{
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < n && used < cap; i++) {
        if (present[i]) continue;
        int last = i;
        while (last + 1 < n && !present[last + 1])
            last++;
        used += (size_t)snprintf(out + used, cap - used, "%s%d", used ? ", " : "", i);
        if (last > i && used < cap)
            used += (size_t)snprintf(out + used, cap - used, "%s%d",
                                     last > i + 1 ? "-" : ", ", last);
        i = last;
    }
}
