/* Links over TCP: a ROUTER that takes what the others send, and a DEALER to each of them.
 *
 *   DEALER -> ROUTER of the other    one frame: a head (link.h), and the bytes
 *
 * A head alone, whose call is all ones, says that its sender has taken `tag` pieces so
 * far: a window of pieces may be on the way beyond that. They are kept, and sent again
 * when a lost connection is made anew; `number` counts pieces, so that one counts once.
 *
 * Each worker draws a secret for its links and gives it to the other workers; a ROUTER
 * lets in whoever shows one of them (gate.h). */
#ifndef PS_LINK_NET_H
#define PS_LINK_NET_H

#include "gate.h"
#include "link.h"
#include "zsock.h"

typedef struct ps_link_net ps_link_net;

typedef struct ps_link_net_options {
    int rank, n_workers; // this worker's rank
    int64_t io_threads;
    uint64_t silence_ms;   // ps_zsock_silence_ms
    const ps_curve *curve; // borrowed
    const char *address;   // of this process; borrowed during the call
} ps_link_net_options;

/* Binds the ROUTER; nobody gets in yet. */
ps_err ps_link_net_create(const ps_link_net_options *o, ps_link_net **out);
const char *ps_link_net_endpoint(const ps_link_net *n);
const ps_secret *ps_link_net_secret(const ps_link_net *n); // this worker's
/* After all links were destroyed. */
void ps_link_net_destroy(ps_link_net **n);

/* A link to the worker with that ROUTER and secret. *out is owned by the caller. */
ps_err ps_link_net_connect(ps_link_net *n, int rank, const char *endpoint,
                           const ps_secret *secret, ps_link **out);
/* Once all links are made: lets the others in. */
void ps_link_net_open(ps_link_net *n);

/* For the thread of the links. Items to poll, at most PS_LINK_NET_ITEMS. */
enum { PS_LINK_NET_ITEMS = 16 };
int ps_link_net_items(ps_link_net *n, zmq_pollitem_t *items);
/* After that poll: sends again what lost connections may have taken along. NET, NOMEM. */
ps_err ps_link_net_mend(ps_link_net *n);
int ps_link_net_poll_ms(const ps_link_net *n);
/* Takes what has come; *moved: there was something. NET, PROTOCOL. */
ps_err ps_link_net_turn(ps_link_net *n, bool *moved);

#endif
