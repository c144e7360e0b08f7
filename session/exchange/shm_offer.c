#include "shm_offer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "job_keys.h"
#include "log.h"
#include "shm_pass.h"

/* The name of a door; its owner puts it right after joining. */
static ps_err door_name(ps_member *member, const char *key, ps_deadline deadline,
                        char name[PS_SHM_NAME_MAX])
{
    void *value = NULL;
    size_t bytes = 0;
    PS_TRY(ps_member_get(member, key, &value, &bytes, deadline));
    bool fits = bytes > 0 && bytes < PS_SHM_NAME_MAX;
    if (fits) memcpy(name, value, bytes);
    name[fits ? bytes : 0] = '\0';
    free(value);
    return fits ? PS_OK : ps_err_set(PS_ERR_PEER, "it has none (exchange.shm)");
}

ps_err ps_shm_offer_at(const ps_exchange_options *o, const char *key,
                       const ps_shm_offer_more *more)
{
    ps_deadline deadline = ps_exchange_join_deadline(o);
    char name[PS_SHM_NAME_MAX];
    PS_TRY(door_name(o->member, key, deadline, name));
    int fd;
    PS_TRY(ps_shm_connect(name, deadline, &fd));
    const ps_shm_offer message = {
        .rank = (uint32_t)o->rank,
        .nonce = ps_member_roster(o->member)->nonce,
        .bytes = o->params->bytes,
        .ring_bytes = more->rings ? more->rings->bytes : 0,
        .row_bytes = more->rows ? more->rows->bytes : 0,
    };
    const int fds[PS_SHM_FDS] = {o->params->fd, o->grads->fd,
                                 more->rings ? more->rings->fd : -1,
                                 more->rows ? more->rows->fd : -1};
    ps_err err = ps_shm_offer_send(fd, &message, fds);
    if (err == PS_OK)
        err = ps_shm_answer_recv(fd, ps_member_abort_fd(o->member), deadline, more->wakes,
                                 more->rings ? more->n_wakes : 0);
    close(fd);
    if (err != PS_OK) PS_TRY(ps_member_check(o->member)); // it tells the cause
    return err;
}

bool ps_shm_offer_possible(const ps_exchange_ops *ops, const ps_exchange_settings *x,
                           const ps_roster *roster, int rank)
{
    if (x->shm != PS_SWITCH_AUTO) return x->shm == PS_SWITCH_ON;
    const bool servers = ops->servers && x->codec.codec == PS_CODEC_NONE;
    const ps_roster_entry *here = &roster->workers[rank];
    for (int s = 0; servers && s < roster->n_servers; s++)
        if (ps_roster_same_host(here, &roster->servers[s])) return true;
    for (int r = 0; ops->peers && r < roster->n_workers; r++)
        if (r != rank && ps_roster_same_host(here, &roster->workers[r])) return true;
    return false;
}

ps_err ps_shm_offer_arenas(const ps_exchange_options *o, int server,
                           const ps_shm_offer_more *more, bool *shared)
{
    *shared = false;
    const ps_exchange_settings *x = &o->settings;
    const ps_codec coded = x->codec.codec;
    if (x->shm == PS_SWITCH_OFF) return PS_OK;
    bool required = x->shm == PS_SWITCH_ON;
    // Both at once would give workers of one host other sums than those of others.
    if (coded != PS_CODEC_NONE) {
        const char *codec = ps_word_name(ps_codec_words, (int)coded);
        if (!required && server == 0)
            PS_INFO("shm", "used=no reason=\"exchange.codec is %s\"", codec);
        if (!required) return PS_OK;
        return ps_err_set(PS_ERR_CONFIG,
                          "exchange.shm is on, but exchange.codec is %s: "
                          "encoded payloads travel by tcp",
                          codec);
    }
    const ps_roster *roster = ps_member_roster(o->member);
    const ps_roster_entry *there = &roster->servers[server];
    if (!ps_roster_same_host(&roster->workers[o->rank], there)) {
        if (!required) return PS_OK;
        return ps_err_set(PS_ERR_CONFIG,
                          "exchange.shm is on, but server %d (host %s) is not on this "
                          "host and network namespace",
                          server, there->host);
    }
    if (o->params->fd < 0) return PS_OK; // made when no other process was here
    ps_err err = ps_shm_offer_at(o, ps_job_key_shm(PS_ROLE_SERVER, server).text, more);
    *shared = err == PS_OK;
    if (err == PS_OK) return PS_OK;
    ps_err_prefix(err, "shared memory with server %d", server);
    // After an abort of the job tcp would not help either.
    if (required || ps_member_check(o->member) != PS_OK) return err;
    PS_WARN("shm", "reason=\"%s\" instead=tcp", ps_err_message());
    return PS_OK;
}
