/* The control plane's decoder, and the coordinator behind it. The input is a row of
 * messages. Each has a byte that names the sender, two bytes of length (low byte first),
 * and the frame. JOINs go to the admission, WELCOME carries a roster, ORDER an order. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "coord_admission.h"
#include "coord_readers.h"
#include "coord_state.h"
#include "log.h"
#include "sync_codec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SERVERS = 2, WORKERS = 3 };

/* Every answer has to fit the encoder. */
static void answer(void *owner, const ps_control_id *to, const ps_control *c)
{
    zmq_msg_t msg;
    if (ps_control_frame(&msg, c) != PS_OK) abort();
    zmq_msg_close(&msg);
}

/* A coordinator without sockets: what it sends goes nowhere. */
static void open_job(ps_coordinator *c, ps_coord_board *board, ps_coord_peer *peers)
{
    *c = (ps_coordinator){.o = {.n_servers = SERVERS,
                                .n_workers = WORKERS,
                                .config_hash = 5,
                                .plan_hash = 6},
                          .job = "job",
                          .board = board,
                          .n_workers = WORKERS,
                          .peers = peers};
    if (ps_coord_index_init(&c->index, SERVERS + WORKERS) != PS_OK) abort();
}

static void close_job(ps_coordinator *c)
{
    while (c->n_peers > 0)
        ps_coord_drop_peer(c, &c->peers[0], "the end");
    ps_coord_index_fini(&c->index);
}

/* A JOIN at the door, and the news of some that they have come. */
static void join(ps_coordinator *job, uint8_t sender, const ps_control *c)
{
    const ps_control_id door_id = {{sender}};
    ps_coord_on_join(job, &door_id, NULL, c);
    if (job->n_peers > 0 && sender % 2)
        ps_coord_on_here(job, &job->peers[sender % job->n_peers]);
}

static void take(ps_coordinator *job, ps_coord_board *b, uint8_t sender,
                 const ps_control *c)
{
    ps_roster roster;
    ps_sync_entry entries[WORKERS];
    ps_sync_order order;
    int rank = sender % (WORKERS + 1) - 1; // -1: a link of a server
    ps_secret secret = {{sender % (WORKERS + 1)}};
    ps_coord_asker from = {.role = rank < 0 ? PS_ROLE_SERVER : PS_ROLE_WORKER,
                           .rank = rank < 0 ? 0 : rank};
    ps_control_id_make(&from.id, &secret, sender);
    switch (c->kind) {
    case PS_CONTROL_JOIN:
        join(job, sender, c);
        break;
    case PS_CONTROL_READER:
        ps_coord_on_reader(job, &sender, sizeof sender, c);
        break;
    case PS_CONTROL_WELCOME:
        (void)ps_roster_read(&roster, c->value, c->bytes);
        ps_roster_fini(&roster);
        break;
    case PS_CONTROL_ORDER:
        (void)ps_sync_order_read(c->value, c->bytes, entries, WORKERS, &order);
        break;
    case PS_CONTROL_LEAVE:
        if (rank >= 0) ps_coord_board_worker_left(b, rank);
        break;
    case PS_CONTROL_BYE:
        ps_coord_board_forget(b, &secret);
        break;
    default:
        ps_coord_board_request(b, &from, c);
    }
    (void)ps_coord_board_expire(b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ps_coord_board *b;
    ps_coordinator job;
    ps_coord_peer peers[SERVERS + WORKERS];
    ps_log_init("fuzz", PS_LOG_ERROR + 1);
    if (ps_coord_board_create(WORKERS, answer, NULL, &b) != PS_OK) abort();
    open_job(&job, b, peers);
    while (size >= 3) {
        size_t n = data[1] | (size_t)data[2] << 8;
        if (n > size - 3) n = size - 3;
        ps_control c;
        // Exactly as large as the frame, so that ASan sees a read past its end.
        uint8_t *frame = malloc(n ? n : 1);
        if (!frame) abort();
        memcpy(frame, data + 3, n);
        if (ps_control_read(frame, n, &c, NULL) == PS_OK) take(&job, b, data[0], &c);
        free(frame);
        data += 3 + n;
        size -= 3 + n;
    }
    close_job(&job);
    ps_coord_board_destroy(&b);
    return 0;
}
