/* Parts, segments, and the order in which they are sent. */
#include "check.h"
#include "send_queue.h"

enum { BLOCK = 4096, SEGMENT = 3008, N_TENSORS = 4, MAX_RANKS = 5 };

typedef struct fixture {
    ps_tensor tensors[N_TENSORS];
    ps_tensor_table table;
    ps_buckets buckets;
    ps_scatter scatter;
} fixture;

static void set_up(fixture *f, int n_ranks, uint64_t segment)
{
    static const uint64_t counts[N_TENSORS] = {100, 5 * BLOCK, 17, 3 * BLOCK + 5};
    uint64_t offset = 0;
    *f = (fixture){.table = {.n_tensors = N_TENSORS, .tensors = f->tensors}};
    for (int i = 0; i < N_TENSORS; i++) {
        f->tensors[i] = (ps_tensor){.offset = offset, .count = counts[i]};
        offset += (counts[i] + PS_TENSOR_ALIGN - 1) / PS_TENSOR_ALIGN * PS_TENSOR_ALIGN;
    }
    f->table.arena_count = offset;
    // tensor 3; 2 and 1; 0
    assert_ok(ps_buckets_init(&f->buckets, &f->table, 4 * BLOCK, 4 * BLOCK));
    assert_int_equal(f->buckets.n, 3);
    assert_ok(ps_scatter_init(&f->scatter, &f->table, &f->buckets, n_ranks, segment));
}

static void tear_down(fixture *f)
{
    ps_scatter_fini(&f->scatter);
    ps_buckets_fini(&f->buckets);
}

/* Every element of a tensor is in one segment of one rank, whatever the number of ranks,
 * and a segment knows its tensors. */
TEST(test_segments_cover_all_once)
{
    for (int n = 1; n <= MAX_RANKS; n++) {
        fixture f;
        set_up(&f, n, SEGMENT);
        unsigned char *seen = calloc(f.table.arena_count, 1);
        assert_non_null(seen);
        for (int b = 0; b < f.buckets.n; b++)
            for (int r = 0; r < n; r++)
                for (uint64_t i = 0; i < ps_scatter_segments(&f.scatter, b, r); i++) {
                    ps_chunk s = ps_scatter_segment(&f.scatter, b, r, i);
                    assert_in_range(s.count, 1, SEGMENT);
                    for (int t = s.first_tensor; t <= s.last_tensor; t++) {
                        uint64_t begin, end;
                        ps_chunk_overlap(&s, &f.tensors[t], &begin, &end);
                        for (; begin < end; begin++)
                            seen[f.tensors[t].offset + begin]++;
                    }
                }
        for (int t = 0; t < N_TENSORS; t++)
            for (uint64_t k = 0; k < f.tensors[t].count; k++)
                assert_int_equal(seen[f.tensors[t].offset + k], 1);
        free(seen);
        tear_down(&f);
    }
}

/* What a rank receives from a peer lies in one piece, bucket behind bucket. */
TEST(test_staging_has_no_gaps)
{
    fixture f;
    set_up(&f, 3, SEGMENT);
    for (int r = 0; r < 3; r++) {
        uint64_t before = 0;
        for (int b = 0; b < f.buckets.n; b++) {
            assert_int_equal(ps_scatter_before(&f.scatter, b, r), before);
            before += ps_scatter_part(&f.scatter, b, r)->count;
        }
        assert_int_equal(ps_scatter_before(&f.scatter, f.buckets.n, r), before);
    }
    tear_down(&f);
}

static void start(fixture *f, ps_send_queue *q, int n_ranks, int rank)
{
    set_up(f, n_ranks, SEGMENT);
    assert_ok(ps_send_queue_init(q, &f->scatter, rank, 1));
}

static void offer_all(ps_send_queue *q)
{
    for (int b = 0; b < q->scatter->n_buckets; b++)
        ps_send_queue_offer(q);
}

static int send_all(ps_send_queue *q, ps_send *sends, int most)
{
    int n = 0;
    while (ps_send_queue_next(q, &sends[n])) {
        ps_send_queue_sent(q, sends[n].peer);
        n++;
        assert_true(n < most);
    }
    return n;
}

static void share_all(ps_send_queue *q, int rank)
{
    for (int b = 0; b < q->scatter->n_buckets; b++)
        for (uint64_t i = 0; i < ps_scatter_segments(q->scatter, b, rank); i++)
            ps_send_queue_share(q, b);
}

/* Three steps: each segment goes once, to its owner or, with new weights, to all peers,
 * and the segments of a bucket in their order. */
TEST(test_each_segment_is_sent_once)
{
    enum { MOST = 400 };
    fixture f;
    ps_send_queue q;
    ps_send sends[MOST];
    start(&f, &q, 4, 2);
    for (int step = 0; step < 3; step++) {
        offer_all(&q);
        share_all(&q, 2);
        uint64_t next[2][4][3] = {0};
        int n = send_all(&q, sends, MOST);
        for (int i = 0; i < n; i++) {
            uint64_t *at = &next[sends[i].weights][sends[i].peer][sends[i].bucket];
            assert_int_not_equal(sends[i].peer, 2);
            assert_int_equal(sends[i].segment, *at);
            ++*at;
        }
        for (int b = 0; b < f.buckets.n; b++)
            for (int r = 0; r < 4; r++) {
                if (r == 2) continue;
                assert_int_equal(next[0][r][b], ps_scatter_segments(&f.scatter, b, r));
                assert_int_equal(next[1][r][b], ps_scatter_segments(&f.scatter, b, 2));
            }
    }
    ps_send_queue_fini(&q);
    tear_down(&f);
}

/* Each rank sends to its peers in turn, beginning with the next rank. Ranks of equal
 * speed never send to the same peer at the same time. */
TEST(test_ranks_send_to_different_peers)
{
    enum { RANKS = 3, ROUNDS = 4 };
    fixture f;
    ps_send_queue q[RANKS];
    set_up(&f, RANKS, 512);
    for (int r = 0; r < RANKS; r++) {
        assert_ok(ps_send_queue_init(&q[r], &f.scatter, r, 2));
        ps_send_queue_offer(&q[r]);
    }
    for (int i = 0; i < ROUNDS * (RANKS - 1); i++) {
        bool taken[RANKS] = {false};
        for (int r = 0; r < RANKS; r++) {
            ps_send send;
            assert_true(ps_send_queue_next(&q[r], &send));
            assert_int_equal(send.peer, (r + 1 + i % (RANKS - 1)) % RANKS);
            assert_false(taken[send.peer]);
            taken[send.peer] = true;
            ps_send_queue_sent(&q[r], send.peer);
        }
    }
    for (int r = 0; r < RANKS; r++)
        ps_send_queue_fini(&q[r]);
    tear_down(&f);
}

/* Gradients go before all weights. Of the weights, the last bucket's go first. */
TEST(test_what_is_wanted_first_goes_first)
{
    enum { MOST = 100 };
    fixture f;
    ps_send_queue q;
    ps_send sends[MOST];
    start(&f, &q, 2, 1);
    ps_send_queue_offer(&q);
    share_all(&q, 1);
    ps_send_queue_offer(&q);
    ps_send_queue_offer(&q);
    int n = send_all(&q, sends, MOST);
    for (int i = 1; i < n; i++) {
        assert_true(sends[i].weights || !sends[i - 1].weights);
        if (sends[i].weights && sends[i - 1].weights)
            assert_true(sends[i].bucket <= sends[i - 1].bucket);
        if (!sends[i].weights) assert_true(sends[i].bucket >= sends[i - 1].bucket);
    }
    assert_true(sends[n - 1].weights);
    ps_send_queue_fini(&q);
    tear_down(&f);
}

/* A peer gets a step's weights before gradients of the next step. Otherwise a rank that
 * is ahead would delay one that is behind, and later wait for it even longer. */
TEST(test_a_step_s_weights_go_before_the_next_step)
{
    enum { MOST = 100 };
    fixture f;
    ps_send_queue q;
    ps_send sends[MOST];
    start(&f, &q, 2, 1);
    offer_all(&q);
    int gradients = send_all(&q, sends, MOST);
    share_all(&q, 1);
    offer_all(&q);
    int n = send_all(&q, sends, MOST);
    for (int i = 0; i < n; i++)
        assert_int_equal(sends[i].weights, i < n - gradients);
    assert_true(n > gradients);
    ps_send_queue_fini(&q);
    tear_down(&f);
}

/* A peer that receives nothing delays no other. */
TEST(test_a_slow_peer_holds_itself)
{
    fixture f;
    ps_send_queue q;
    ps_send send;
    set_up(&f, 3, 512);
    assert_ok(ps_send_queue_init(&q, &f.scatter, 0, 2));
    ps_send_queue_offer(&q);
    int to[3] = {0};
    while (ps_send_queue_next(&q, &send)) {
        to[send.peer]++;
        if (send.peer == 2) ps_send_queue_sent(&q, 2);
    }
    assert_int_equal(to[1], 2);
    assert_int_equal(to[2], ps_scatter_segments(&f.scatter, 0, 2));
    ps_send_queue_sent(&q, 1);
    assert_true(ps_send_queue_next(&q, &send));
    assert_int_equal(send.peer, 1);
    assert_int_equal(send.segment, 2);
    assert_false(ps_send_queue_next(&q, &send));
    ps_send_queue_fini(&q);
    tear_down(&f);
}
