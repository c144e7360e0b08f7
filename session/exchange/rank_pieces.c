#include "rank_pieces.h"

#include <stdlib.h>
#include <string.h>

#include "job_keys.h"

enum { PIECE_BYTES = 4 << 20 };

static ps_deadline piece_deadline(const ps_rank_pieces *p)
{
    return ps_deadline_in_ms(p->timeout_ms);
}

static size_t most_bytes(const ps_rank_pieces *p)
{
    size_t most = 0;
    for (int r = p->holder ? 0 : 1; r < p->world_size; r++)
        if (p->bytes[r] > most) most = p->bytes[r];
    return most;
}

/* Of a rank's bytes, those of the piece that begins at `at`. */
static size_t piece_bytes(const ps_rank_pieces *p, int rank, size_t at)
{
    size_t left = p->bytes[rank] > at ? p->bytes[rank] - at : 0;
    return left < PIECE_BYTES ? left : PIECE_BYTES;
}

static ps_err rank_pieces_put(const ps_rank_pieces *p, bool down, int rank, size_t at)
{
    const ps_job_key key = ps_job_key_piece(down, rank);
    size_t n = piece_bytes(p, rank, at);
    if (n == 0 && at > 0 && piece_bytes(p, rank, at - PIECE_BYTES) == 0) return PS_OK;
    // An empty piece after the last, so that the coordinator can free that.
    const char *from = p->memory[rank];
    return ps_member_put(p->member, key.text, n ? from + at : from, n, piece_deadline(p));
}

static ps_err rank_pieces_get(const ps_rank_pieces *p, bool down, int rank, size_t at)
{
    const ps_job_key key = ps_job_key_piece(down, rank);
    void *value = NULL;
    size_t bytes = 0, n = piece_bytes(p, rank, at);
    if (n == 0) return PS_OK;
    PS_TRY(ps_member_get(p->member, key.text, &value, &bytes, piece_deadline(p)));
    ps_err err = PS_OK;
    if (bytes == n)
        memcpy((char *)p->memory[rank] + at, value, n);
    else
        err =
            ps_err_set(PS_ERR_PROTOCOL, "%s has %zu bytes, not %zu", key.text, bytes, n);
    free(value);
    return err;
}

/* Rank 0's part of a round, and the holder's. */
static ps_err of_all(const ps_rank_pieces *p, bool down, size_t at)
{
    if (p->rank != 0 && p->rank != p->holder) return PS_OK;
    for (int r = 0; r < p->world_size; r++)
        if (r != p->rank)
            PS_TRY((down ? rank_pieces_put : rank_pieces_get)(p, down, r, at));
    return PS_OK;
}

/* A last round, of nothing, frees what the coordinator keeps. */
ps_err ps_rank_pieces_gather(const ps_rank_pieces *p)
{
    if (!p->member || p->world_size < 2) return PS_OK;
    for (size_t at = 0; at < most_bytes(p) + PIECE_BYTES; at += PIECE_BYTES) {
        if (p->rank != 0 || p->holder) PS_TRY(rank_pieces_put(p, false, p->rank, at));
        PS_TRY(ps_member_barrier(p->member, "pieces/put", piece_deadline(p)));
        PS_TRY(of_all(p, false, at));
        PS_TRY(ps_member_barrier(p->member, "pieces/got", piece_deadline(p)));
    }
    return PS_OK;
}

ps_err ps_rank_pieces_scatter(const ps_rank_pieces *p)
{
    if (!p->member || p->world_size < 2) return PS_OK;
    for (size_t at = 0; at < most_bytes(p) + PIECE_BYTES; at += PIECE_BYTES) {
        PS_TRY(of_all(p, true, at));
        PS_TRY(ps_member_barrier(p->member, "pieces/put", piece_deadline(p)));
        if (p->rank != 0) PS_TRY(rank_pieces_get(p, true, p->rank, at));
        PS_TRY(ps_member_barrier(p->member, "pieces/got", piece_deadline(p)));
    }
    return PS_OK;
}
