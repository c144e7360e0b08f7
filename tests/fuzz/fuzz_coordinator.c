/* The control plane's decoder and what the coordinator does with what it takes: the input
 * is a row of messages, each a byte that says who sends it, two bytes of length (little-
 * endian), and the frame. JOIN and WELCOME carry entries and rosters. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "coord_board.h"
#include "roster.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WORKERS = 3 };

/* Every answer has to fit the encoder. */
static void answer(void *owner, const ps_control_id *to, const ps_control *c)
{
    zmq_msg_t msg;
    if (ps_control_frame(&msg, c) != PS_OK) abort();
    zmq_msg_close(&msg);
}

static void take(ps_coord_board *b, uint8_t sender, const ps_control *c)
{
    ps_roster roster;
    ps_roster_entry entry;
    ps_mp_reader r;
    ps_control_id id = {{sender}};
    int rank = sender % (WORKERS + 1) - 1; // -1: a server or a link
    switch (c->kind) {
    case PS_CONTROL_JOIN:
        ps_mp_reader_init(&r, c->value, c->bytes);
        (void)ps_roster_entry_read(&r, &entry);
        ps_roster_entry_fini(&entry);
        break;
    case PS_CONTROL_WELCOME:
        (void)ps_roster_read(&roster, c->value, c->bytes);
        ps_roster_fini(&roster);
        break;
    case PS_CONTROL_LEAVE:
        if (rank >= 0) ps_coord_board_worker_left(b, rank);
        break;
    case PS_CONTROL_BYE:
        ps_coord_board_forget(b, &id);
        break;
    default:
        ps_coord_board_request(b, &id, rank, c);
    }
    ps_coord_board_expire(b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ps_coord_board *b;
    if (ps_coord_board_create(WORKERS, answer, NULL, &b) != PS_OK) abort();
    while (size >= 3) {
        size_t n = data[1] | (size_t)data[2] << 8;
        if (n > size - 3) n = size - 3;
        ps_control c;
        // Exactly as large as the frame, so that ASan sees a read past its end.
        uint8_t *frame = malloc(n ? n : 1);
        if (!frame) abort();
        memcpy(frame, data + 3, n);
        if (ps_control_read(frame, n, &c, NULL) == PS_OK) take(b, data[0], &c);
        free(frame);
        data += 3 + n;
        size -= 3 + n;
    }
    ps_coord_board_destroy(&b);
    return 0;
}
